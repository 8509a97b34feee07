"""`check --memory` as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.build.memory import plan_memory
from loopwright.build.memory_parts import DeviceRoom, MemoryPart, ProcessMemory, When
from loopwright.cli import main
from loopwright.cli.memory import verdict
from loopwright.config.loading import load
from loopwright.errors import ModelError
from loopwright.models.device import SeenGpus

CONFIG = """
model: {{path: {model}}}
data: {{kind: jsonl, path: tasks.jsonl}}
agent: {{kind: single_turn, judger: integer_answer}}
rollout: {{max_new_tokens: 8}}
trainer: {{run_dir: runs/x, steps: 10}}
"""
GIB = 1 << 30
PART = MemoryPart("weights", 3 * GIB, "choose a smaller model")


@pytest.fixture
def file(tmp_path: Path, tiny_llama_folder: Path) -> Path:
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "2+2?", "truth": 4}\n')
    (tmp_path / "run.yaml").write_text(CONFIG.format(model=tiny_llama_folder))
    return tmp_path / "run.yaml"


def run(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return int(caught.value.code or 0), capfd.readouterr().out


def test_every_part_of_a_run_is_listed(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out = run(capfd, "check", file, "--memory", "--tokens", 40)
    assert code == 0
    assert "conversations of 40 tokens (--tokens), of which 8 are sampled last" in out
    for name in ("weights", "gradients", "moments of AdamW", "activations and logits of 704 tokens", "at most, in GiB"):
        assert f"  {name}" in out
    assert "keys and values of 64 sequences of 40 tokens" in out
    assert "fits: cpu needs 0." in out
    assert "the largest part is " in out


def test_an_engine_apart_is_a_process_of_its_own(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out = run(capfd, "check", file, "--memory", "--tokens", 40, "rollout.engine.num_engines=2")
    assert code == 0
    assert "an engine (2 of them) on cpu" in out
    assert "weights on their way to engines" in out


def test_engines_are_planned_on_the_gpus_that_they_take(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = SeenGpus(build="CUDA 13.0", usable=2, in_machine=2)
    monkeypatch.setattr("loopwright.build.devices.seen_gpus", lambda: two)
    wanted = ["model.device=cpu", "rollout.engine.device=cuda", "rollout.engine.num_engines=3"]
    plan = plan_memory(load(file, wanted, env={}), file.parent, 40)
    engines = [(one.device, one.count) for one in plan.processes if one.name == "an engine"]
    assert engines == [("cuda:0", 2), ("cuda:1", 1)]


def test_ranks_hold_a_part_each(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out = run(capfd, "check", file, "--memory", "--tokens", 40, "learner.ranks=2", "rollout.engine.num_engines=1")
    assert code == 0
    assert "a rank (2 of them) on cpu" in out
    assert "its part of AdamW's moments" in out


def test_ranks_with_adapters_keep_moments_of_these_only_and_no_second_model(
    file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ranks = ("learner.ranks=2", "rollout.engine.num_engines=1", "learner.kl.kind=k3", "learner.kl.coefficient=0.1")
    plans = []
    for more in ((), ("learner.lora.rank=1", "learner.lora.targets=[q_proj]")):
        plan = plan_memory(load(file, [*ranks, *more], env={}), file.parent, 40)
        (rank,) = (one for one in plan.processes if one.name == "a rank")
        plans.append({part.name: part.size for part in rank.parts})
    whole, adapters = plans
    name = "its part of AdamW's moments"
    assert 0 < adapters[name] < whole[name] / 20
    assert "its part of the reference model" in whole
    assert "its part of the reference model" not in adapters


def test_adapters_are_planned_too(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out = run(capfd, "check", file, "--memory", "--tokens", 40, "learner.lora.rank=4")
    assert code == 0
    assert "weights under adapters, apart from the engine's" in out


def test_engines_that_are_attached_get_whole_weights_and_others_adapters(file: Path) -> None:
    sent = []
    for engine in ("{num_engines: 1}", "{kind: loopwright, urls: ['http://127.0.0.1:1']}"):
        settings = [f"rollout.engine={engine}", "learner.lora.rank=1"]
        plan = plan_memory(load(file, settings, env={}), file.parent, 40)
        (part,) = (one for process in plan.processes for one in process.parts if "on their way" in one.name)
        sent.append(part.size)
    adapters, whole = sent
    assert adapters < whole / 5


def test_what_does_not_fit_exits_with_2(
    file: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loopwright.build.memory_parts.room_on", lambda device: (1 << 20, 1 << 20))
    code, out = run(capfd, "check", file, "--memory", "--tokens", 40)
    assert code == 2
    assert "does not fit: cpu needs" in out


def test_sampling_and_training_take_turns() -> None:
    parts = (
        PART,
        MemoryPart("activations", GIB, "", When.TRAINING),
        MemoryPart("copy", 2 * GIB, "", When.SAMPLING),
        MemoryPart("prompts", GIB, "", When.SAMPLING),
    )
    assert ProcessMemory("the run", "cpu", parts).peak == 6 * GIB


@pytest.mark.parametrize(
    ("total", "free", "said"),
    [
        (8, 8, "fits: cpu needs 6.00 GiB of the 8.00 GiB"),
        (8, 5, "fits, but not now"),
        (5, 5, "does not fit: cpu needs 6.00 GiB of the 5.00 GiB"),
        (None, None, "what it has is not known here"),
    ],
)
def test_the_verdict(total: int | None, free: int | None, said: str) -> None:
    whole, now = (None if size is None else size * GIB for size in (total, free))
    assert said in verdict(DeviceRoom("cpu", 6 * GIB, whole, now, PART))[0]


def parts_of(file: Path, *overrides: str, tokens: int = 40, process: int = 0) -> dict[str, int]:
    plan = plan_memory(load(file, overrides, env={}), file.parent, tokens)
    return {part.name: part.size for part in plan.processes[process].parts}


def cached(file: Path, *overrides: str) -> list[str]:
    return [name for name in parts_of(file, *overrides) if name.startswith("cache of ")]


EVALUATED = (
    "eval: {{data: {{kind: jsonl, path: eval.jsonl}}, agent: {{kind: single_turn, judger: integer_answer}}{more}}}"
)
SMALL_STEPS = ("trainer.groups_per_step=1", "rollout.samples_per_task=2")


@pytest.mark.parametrize(
    ("tasks", "more", "planned"),
    [(40, "", 40), (100, "", 64), (40, ", samples: 8", 64), (1, "", 2)],
    ids=["as many as it has tasks", "as many as an engine takes", "all samples of each", "fewer than in training"],
)
def test_evaluation_samples_more_at_once_than_a_step(file: Path, tasks: int, more: str, planned: int) -> None:
    assert "keys and values of 2 sequences of 40 tokens" in parts_of(file, *SMALL_STEPS)
    rows = [f'{{"prompt": "{number}+2?", "truth": 4}}' for number in range(tasks)]
    (file.parent / "eval.jsonl").write_text("\n".join(rows))
    file.write_text(file.read_text() + EVALUATED.format(more=more))
    assert f"keys and values of {planned} sequences of 40 tokens" in parts_of(file, *SMALL_STEPS)


def test_answers_of_an_evaluation_have_a_length_of_their_own(file: Path) -> None:
    """Its answers share no prompt, so more of each conversation is in the rows of live requests."""
    (file.parent / "eval.jsonl").write_text("\n".join(f'{{"prompt": "{n}", "truth": 4}}' for n in range(64)))
    name = "keys and values of 64 sequences of 400 tokens"
    texts = [file.read_text() + EVALUATED.format(more=more) for more in ("", ", sampling: {max_new_tokens: 300}")]
    sizes = []
    for text in texts:
        file.write_text(text)
        sizes.append(parts_of(file, *SMALL_STEPS, tokens=400)[name])
    assert sizes[1] > sizes[0]


def test_the_cache_keeps_what_was_sampled_since_the_last_update(file: Path) -> None:
    few = ("rollout.engine.max_batch=2", "rollout.samples_per_task=2")
    assert cached(file, *few, "trainer.groups_per_step=48") == [f"cache of {48 * (32 + 2 * 8):,} earlier tokens"]
    for more in (("produce.filter=no_signal",), ("produce.kind=async", "rollout.engine.num_engines=0")):
        assert cached(file, *few, *more) == ["cache of 32,768 earlier tokens"]
    (file.parent / "eval.jsonl").write_text('{"prompt": "2+2?", "truth": 4}\n')
    file.write_text(file.read_text() + EVALUATED.format(more=""))
    assert cached(file, *few) == ["cache of 32,768 earlier tokens"]


def test_examples_to_imitate_are_planned_as_long_as_conversations(file: Path) -> None:
    (file.parent / "sft.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "2"}, {"role": "assistant", "content": "3"}]}\n'
    )
    sft = ("learner.sft.path=sft.jsonl", "learner.sft.coefficient=1", "learner.sft.examples_per_step=16")
    assert "activations and logits of 46 tokens" in parts_of(file, *SMALL_STEPS)
    assert f"activations and logits of {16 * 39} tokens" in parts_of(file, *SMALL_STEPS, *sft)
    assert f"activations and logits of {4 * 39} tokens" in parts_of(
        file, *SMALL_STEPS, *sft, "learner.micro_batch_tokens=200"
    )
    assert "activations and logits of 39 tokens" in parts_of(file, *SMALL_STEPS, *sft, "learner.micro_batch_tokens=10")


def test_ranks_on_actors_take_nothing_of_this_machine(file: Path) -> None:
    ranks = ("learner.ranks=2", "rollout.engine.num_engines=1")
    for placement, planned in (("local", True), ("ray", False)):
        plan = plan_memory(load(file, [*ranks, f"learner.placement={placement}"], env={}), file.parent, 40)
        assert {one.here for one in plan.processes if one.name == "a rank"} == {planned}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ((), {"the run": "cuda:0", "the run, beside its GPU,": "cpu"}),
        (
            ("rollout.engine.num_engines=1", "rollout.engine.device=cuda:1"),
            {"an engine": "cuda:1", "an engine, beside its GPU,": "cpu"},
        ),
        (
            ("rollout.engine.num_engines=1", "learner.ranks=2"),
            {"rank 1": "cuda:1", "a rank, beside its GPU,": "cpu"},
        ),
    ],
    ids=["colocated", "engine apart", "ranks"],
)
def test_processes_on_a_gpu_take_memory_of_the_machine_too(
    file: Path, more: tuple[str, ...], expected: dict[str, str]
) -> None:
    plan = plan_memory(load(file, ["model.device=cuda", *more], env={}), file.parent, 40)
    assert expected.items() <= {one.name: one.device for one in plan.processes}.items()
    (beside, *_) = [one for one in plan.processes if one.name in expected and one.device == "cpu"]
    parts = {part.name: part.size for part in beside.parts}
    assert "Python, torch and transformers" in parts
    assert ("weights while they are loaded" in parts) is ("a rank" not in beside.name)


def test_what_cannot_be_computed_without_weights_is_an_error_with_its_model(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def needs_numbers(*_: object, **__: object) -> None:
        raise NotImplementedError("aten::nonzero: attempted to run this operator with Meta tensors\nsecond line")

    monkeypatch.setattr("loopwright.build.memory.step_memory", needs_numbers)
    with pytest.raises(ModelError, match=r"cannot be planned, .* aten::nonzero: .* Meta tensors\n  ->") as caught:
        plan_memory(load(file, env={}), file.parent, 40)
    assert "report this with your model" in caught.value.remedy
