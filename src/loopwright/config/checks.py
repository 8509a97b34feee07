"""Checks across fields: each is a generator over a config that is valid field by field.

Problems keep a run from starting; warnings are settings that are legal but probably not meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from loopwright.config.problems import KeyPath, Problem, dotted, suggest
from loopwright.config.schema import Dtype, RolloutConfig, RunConfig
from loopwright.config.task_sets import BUILT_IN_JUDGERS, SamplingOverrides


def problems(config: RunConfig) -> Iterator[Problem]:
    """Everything that cannot work."""
    yield from _task_sets(config)
    yield from _judger_names(config)
    yield from _one_temperature(config)
    yield from _lengths(config)
    yield from _batches(config)
    yield from _evaluation(config)


def warnings(config: RunConfig) -> Iterator[Problem]:
    """Everything that works, but not as somebody may expect."""
    yield from _truncated_sampling(config)
    yield from _no_signal(config)
    yield from _slow_numbers(config)
    yield from _unused_judgers(config)
    yield from _idle_weights(config)
    yield from _idle_evaluation(config)


def _task_sets(config: RunConfig) -> Iterator[Problem]:
    if not config.task_sets:
        yield Problem(("task_sets",), "empty", "add data and agent, or at least one task set")
    for split in ((), ("eval",)):
        names = Counter(task_set.name for place, task_set in config.all_task_sets() if place[:-2] == split)
        for name, count in names.items():
            if count > 1:
                yield Problem((*split, "task_sets"), f"{count} are named {name!r}", "give each a name of its own")


def _judger_names(config: RunConfig) -> Iterator[Problem]:
    known = sorted({*config.judgers, *BUILT_IN_JUDGERS})
    for place, task_set in config.all_task_sets():
        name = task_set.agent.judger
        if name not in known:
            remedy = suggest(name, known, "declare it under judgers; known judgers")
            yield Problem((*place, "agent", "judger"), f"there is no judger {name!r}", remedy, also=(("judgers", ""),))


def _one_temperature(config: RunConfig) -> Iterator[Problem]:
    common = config.rollout.temperature
    for place, task_set in config.all_task_sets():
        own = task_set.sampling.temperature
        if own is not None and own != common:
            yield Problem(
                (*place, "sampling", "temperature"),
                f"is {own}, but rollout.temperature is {common}: logprobs are compared at one temperature per run",
                "remove it, or set rollout.temperature to it",
                also=(("rollout", "temperature"),),
            )


def _lengths(config: RunConfig) -> Iterator[Problem]:
    context = config.model.max_context
    if context is None:
        return
    fields: list[tuple[KeyPath, int | None]] = [(("rollout", "max_new_tokens"), config.rollout.max_new_tokens)]
    fields += [
        ((*place, "sampling", "max_new_tokens"), t.sampling.max_new_tokens) for place, t in config.all_task_sets()
    ]
    for path, length in fields:
        if length is not None and length >= context:
            yield Problem(
                path,
                f"is {length}, which leaves no room for a prompt in model.max_context {context}",
                "lower it, or raise model.max_context",
                also=(("model", "max_context"),),
            )


def _batches(config: RunConfig) -> Iterator[Problem]:
    limits: list[tuple[KeyPath, int | None, KeyPath, int]] = [
        (
            ("produce", "min_members"),
            config.produce.min_members,
            ("rollout", "samples_per_task"),
            config.rollout.samples_per_task,
        ),
        (
            ("learner", "mini_batches"),
            config.learner.mini_batches,
            ("trainer", "groups_per_step"),
            config.trainer.groups_per_step,
        ),
        (("learner", "warmup_steps"), config.learner.warmup_steps, ("trainer", "steps"), config.trainer.steps),
    ]
    for path, value, limit_path, limit in limits:
        if value is not None and value > limit:
            other = dotted(limit_path)
            yield Problem(
                path, f"is {value}, more than {other} ({limit})", f"lower it, or raise {other}", also=(limit_path,)
            )


def _evaluation(config: RunConfig) -> Iterator[Problem]:
    evaluation = config.eval
    if evaluation is None:
        return
    if evaluation.every > 0 and not evaluation.task_sets:
        yield Problem(
            ("eval", "every"),
            f"is {evaluation.every}, but there is nothing to evaluate on",
            "add eval.data and eval.agent, or remove eval",
        )
    if evaluation.task_sets and not (evaluation.greedy or evaluation.sampled):
        yield Problem(("eval", "greedy"), "is off, and so is eval.sampled", "switch one of them on, or remove eval")


def _truncated_sampling(config: RunConfig) -> Iterator[Problem]:
    yield from _truncates(("rollout",), config.rollout)
    for index, task_set in enumerate(config.task_sets):
        yield from _truncates(("task_sets", index, "sampling"), task_set.sampling)


def _truncates(place: KeyPath, settings: RolloutConfig | SamplingOverrides) -> Iterator[Problem]:
    for name, value, off in (("top_k", settings.top_k, 0), ("top_p", settings.top_p, 1)):
        if value is not None and value != off:
            text = f"is {value}: it changes what is sampled but not the logprobs that are trained on"
            yield Problem((*place, name), text, f"for training, leave it at {off}")


def _no_signal(config: RunConfig) -> Iterator[Problem]:
    if config.rollout.samples_per_task == 1:
        yield Problem(
            ("rollout", "samples_per_task"),
            f"is 1: {config.learner.advantage} compares the members of a group, and a lone one teaches nothing",
            "set it to 2 or more; 8 is usual",
        )


def _slow_numbers(config: RunConfig) -> Iterator[Problem]:
    if config.model.dtype is Dtype.BFLOAT16:
        yield Problem(("model", "dtype"), "is bfloat16: on a CPU it is slower than float32", "use float32 on a CPU")


def _unused_judgers(config: RunConfig) -> Iterator[Problem]:
    used = {task_set.agent.judger for _, task_set in config.all_task_sets()}
    for name in config.judgers:
        if name not in used:
            yield Problem(
                ("judgers", name), "has no effect: no agent names it", "remove it, or name it as an agent's judger"
            )


def _idle_weights(config: RunConfig) -> Iterator[Problem]:
    idle = [place for place, _ in config.all_task_sets() if place[0] == "eval" or len(config.task_sets) == 1]
    for place, task_set in config.all_task_sets():
        if place in idle and "weight" in task_set.model_fields_set:
            reason = "evaluation runs every task" if place[0] == "eval" else "there is only one task set"
            yield Problem((*place, "weight"), f"has no effect: {reason}", "remove it")


def _idle_evaluation(config: RunConfig) -> Iterator[Problem]:
    evaluation = config.eval
    if evaluation is None:
        return
    if not evaluation.task_sets and evaluation.every == 0:
        yield Problem(("eval",), "has no effect: it has no tasks", "add eval.data and eval.agent, or remove eval")
    for index, task_set in enumerate(evaluation.task_sets):
        if "shuffle" in task_set.data.model_fields_set:
            path = ("eval", "task_sets", index, "data", "shuffle")
            yield Problem(path, "has no effect: evaluation runs every task", "remove it")
    if evaluation.every > config.trainer.steps:
        yield Problem(
            ("eval", "every"),
            f"is {evaluation.every}, more than trainer.steps ({config.trainer.steps}): "
            "evaluation runs before and after training only",
            "lower it, or leave it out",
        )
