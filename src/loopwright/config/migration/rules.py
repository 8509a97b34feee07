"""Old settings that mean something only together: batch sizes, the KL term, clipping, epochs, files."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from loopwright.config.migration.values import EMPTY, Lost, Moved, Old, Outcome, Rule, Unneeded, one_of, to, whole

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
VALIDATION = f"{ROLLOUT}.val_kwargs"

BATCH, STEPS, ESTIMATOR = "data.train_batch_size", "trainer.total_training_steps", "algorithm.adv_estimator"
CLIP = {f"{ACTOR}.clip_ratio_low": "learner.loss.clip_low", f"{ACTOR}.clip_ratio_high": "learner.loss.clip_high"}

ADVANTAGES = {
    "grpo": "grpo",
    "grpo_vectorized": "grpo",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "opo": "opo",
    "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
}
AGGREGATES = {"token-mean": "token", "seq-mean-token-mean": "sequence", "seq-mean-token-sum-norm": "constant"}
LOSSES = {"vanilla": "ppo_clip", "gspo": "gspo", "cispo": "cispo"}
KL_KINDS = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
SOURCE_KINDS = {".parquet": "parquet", ".jsonl": "jsonl", ".json": "jsonl"}
TRUTH = "reward_model.ground_truth"
TRACKERS = {"console": "track.console", "tensorboard": "track.tensorboard"}
SERVICES = {"wandb": ("track.wandb.online", True), "mlflow": ("track.mlflow.experiment", "loopwright")}
"""What switches each service on, as verl has it: W&B is sent to at once."""


def mini_batch_size(value: Any, old: Old) -> Outcome:
    """verl has the size of a mini-batch; we have the number of mini-batches."""
    batch = old.get(BATCH)
    if value is None:
        return EMPTY
    if not whole(value) or not whole(batch):
        return Lost(f"cannot be converted without {BATCH}", "set learner.mini_batches: optimiser steps per train step")
    if value < 1 or batch % value:
        return Lost(
            f"is {value}, which does not divide {BATCH} ({batch})", "set learner.mini_batches, or make the sizes fit"
        )
    return (Moved("learner.mini_batches", batch // value),)


def micro_batch_tokens(value: Any, old: Old) -> Outcome:
    if old.get(f"{ACTOR}.use_dynamic_bsz") is not True:
        return Unneeded(f"{ACTOR}.use_dynamic_bsz is off")
    return EMPTY if value is None else (Moved("learner.micro_batch_tokens", value),)


def clip_ratio(value: Any, old: Old) -> Outcome:
    """Set the bounds that have no setting of their own."""
    sides = [ours for theirs, ours in CLIP.items() if old.get(theirs) is None]
    if value is None:
        return EMPTY
    return tuple(Moved(side, value) for side in sides) or Unneeded("clip_ratio_low and clip_ratio_high replace it")


def dual_clip(value: Any, old: Old) -> Outcome:
    if old.get(f"{ACTOR}.policy_loss.loss_mode", "vanilla") != "vanilla":
        return Unneeded("only the vanilla loss uses it")
    return EMPTY if value is None else (Moved("learner.loss.dual_clip", value),)


def advantage(value: Any, old: Old) -> Outcome:
    by_std = old.get("algorithm.norm_adv_by_std_in_grpo", True)
    if value == "grpo_passk" and not by_std and whole(old.get(f"{ROLLOUT}.n")):
        members = old[f"{ROLLOUT}.n"]
        return (Moved("learner.advantage", {"kind": "pass_at_k", "k": members}),)
    if not isinstance(value, str) or value not in ADVANTAGES:
        known = ", ".join(sorted(set(ADVANTAGES.values())))
        return Lost(
            f"is {value!r}, which has no equivalent",
            f"choose a learner.advantage that needs no critic ({known}), or write your own",
        )
    kind = ADVANTAGES[value]
    return (Moved("learner.advantage", "grpo_no_std" if kind == "grpo" and not by_std else kind),)


def divided_by_std(value: Any, old: Old) -> Outcome:
    if ESTIMATOR in old or value is not False:
        return Unneeded("learner.advantage says it")
    return (Moved("learner.advantage", "grpo_no_std"),)


def kl_term(section: str) -> dict[str, Rule]:
    """verl has a switch and two settings that count only if it is on; we have a section or none."""
    defaults = {"kl_loss_type": Moved("learner.kl.kind", "k3"), "kl_loss_coef": Moved("learner.kl.coefficient", 0.001)}

    def on(old: Old) -> bool:
        return old.get(f"{section}.use_kl_loss") is True and old.get(f"{section}.kl_loss_coef") != 0

    def switch(value: Any, old: Old) -> Outcome:
        if not on(old):
            return Unneeded("without learner.kl there is no KL term")
        missing = tuple(moved for name, moved in defaults.items() if old.get(f"{section}.{name}") is None)
        return missing or Unneeded("kl_loss_type and kl_loss_coef say it")

    def while_on(rule: Rule) -> Rule:
        def part(value: Any, old: Old) -> Outcome:
            return rule(value, old) if on(old) else Unneeded(f"{section}.use_kl_loss is off")

        return part

    return {
        f"{section}.use_kl_loss": switch,
        f"{section}.kl_loss_coef": while_on(to("learner.kl.coefficient")),
        f"{section}.kl_loss_type": while_on(one_of("learner.kl.kind", KL_KINDS, "set learner.kl.kind: k1, k2 or k3")),
    }


def warmup_steps(value: Any, old: Old) -> Outcome:
    if not whole(value) or value <= 0:
        return Unneeded("the ratio decides")
    return (Moved("learner.warmup_steps", value),)


def warmup_ratio(value: Any, old: Old) -> Outcome:
    steps = old.get(STEPS)
    given = old.get(f"{ACTOR}.optim.lr_warmup_steps")
    if not value or (whole(given) and given > 0):
        return Unneeded("lr_warmup_steps decides" if value else "there is no warm-up by default")
    if not whole(steps) or not isinstance(value, float | int):
        return Lost(f"cannot be converted without {STEPS}", "set learner.warmup_steps")
    return (Moved("learner.warmup_steps", int(value * steps)),)


def epochs(value: Any, old: Old) -> Outcome:
    if value is None or whole(old.get(STEPS)):
        return Unneeded(f"{STEPS} decides")
    return Lost("counts epochs, and their length is not known here", f"set trainer.steps: epochs * tasks / {BATCH}")


def save_interval(value: Any, old: Old) -> Outcome:
    if whole(value) and value > 0:
        return (Moved("trainer.checkpoint_every", value),)
    steps = old.get(STEPS)
    return (Moved("trainer.checkpoint_every", steps),) if whole(steps) else Unneeded("the last step is always saved")


def context(value: Any, old: Old) -> Outcome:
    """verl has two limits; we have their sum."""
    answer = old.get("data.max_response_length", old.get(f"{ROLLOUT}.response_length"))
    if value is None or whole(old.get(f"{ROLLOUT}.max_model_len")):
        return Unneeded(f"{ROLLOUT}.max_model_len decides")
    if not whole(value) or not whole(answer):
        return Lost("cannot be converted without data.max_response_length", "set model.max_context: prompt and answer")
    return (Moved("model.max_context", value + answer),)


def files(section: str) -> Rule:
    """The kind of source follows from the file's ending; the columns are those of the old format."""

    def rule(value: Any, old: Old) -> Outcome:
        paths = value if isinstance(value, list) else [value]
        if value is None:
            return EMPTY
        if len(paths) != 1 or not isinstance(paths[0], str):
            return Lost(f"names {len(paths)} files", "give each a task set of its own, or name their folder")
        kind = SOURCE_KINDS.get(PurePath(paths[0]).suffix)
        if kind is None:
            return Lost(f"is {paths[0]!r}, neither Parquet nor JSON lines", f"write {section}data by hand")
        truth = Moved(f"{section}data.columns.truth", TRUTH)
        return (Moved(f"{section}data.kind", kind), Moved(f"{section}data.path", paths[0]), truth)

    return rule


def prompt_column(value: Any, old: Old) -> Outcome:
    """verl has one setting for the files of training and of evaluation."""
    sections = {"data.train_files": "", "data.val_files": "eval."}
    moved = tuple(Moved(f"{ours}data.columns.prompt", value) for theirs, ours in sections.items() if old.get(theirs))
    return moved or (Moved("data.columns.prompt", value),)


def trackers(value: Any, old: Old) -> Outcome:
    names = value if isinstance(value, list) else [value]
    unknown = [name for name in names if name not in TRACKERS and name not in SERVICES]
    if unknown:
        return Lost(
            f"names {', '.join(map(str, unknown))}",
            "leave it out: every metric is in metrics.jsonl of the run's folder",
        )
    services = [Moved(*switch) for theirs, switch in SERVICES.items() if theirs in names]
    return (*(Moved(ours, theirs in names) for theirs, ours in TRACKERS.items()), *services)


def sampled_evaluation(value: Any, old: Old) -> Outcome:
    """Sampling at temperature 0 is greedy."""
    sampled = bool(value) and old.get(f"{VALIDATION}.temperature") != 0
    return EMPTY if value is None else (Moved("eval.greedy", not sampled), Moved("eval.sampled", sampled))


def evaluation_temperature(value: Any, old: Old) -> Outcome:
    """Evaluation is greedy, or samples as training does."""
    if value is None or value == 0:
        return Unneeded("eval.greedy says it")
    if value != old.get(f"{ROLLOUT}.temperature", 1):
        return Lost(f"is {value!r}, which has no equivalent", "remove it: eval.sampled is at rollout.temperature")
    if old.get(f"{VALIDATION}.do_sample") is False:
        return Lost(f"is {value!r}, but do_sample is false", "remove one of them: eval is greedy, or sampled")
    return Unneeded("eval.sampled is at rollout.temperature")


def evaluation_interval(value: Any, old: Old) -> Outcome:
    if off_at_minus_one(value) == 0 and not old.get("data.val_files"):
        return Unneeded("without data.val_files nothing is evaluated")
    return EMPTY if value is None else (Moved("eval.every", off_at_minus_one(value)),)


def off_at_minus_one(value: Any) -> Any:
    """-1 means off in verl, 0 means off here."""
    return 0 if value == -1 else value


def importance(value: Any, old: Old) -> Outcome:
    if value is None:
        return (Moved("learner.importance.kind", "off"),)
    if value not in ("token", "sequence"):
        return Lost(f"is {value!r}, which has no equivalent", "set learner.importance.level: token or sequence")
    return (Moved("learner.importance.kind", "truncate"), Moved("learner.importance.level", value))


def importance_cap(value: Any, old: Old) -> Outcome:
    if old.get("algorithm.rollout_correction.rollout_is") is None:
        return Unneeded("algorithm.rollout_correction.rollout_is is off")
    return (Moved("learner.importance.cap", value),)


def group_filter(value: Any, old: Old) -> Outcome:
    return (Moved("produce.filter", "no_signal"),) if value is True else Unneeded("without produce.filter, all train")
