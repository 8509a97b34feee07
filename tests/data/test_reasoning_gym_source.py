"""reasoning_gym: every family that can be stored is a source, the same one each time, and its scorer judges it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from reasoning_gym.factory import create_dataset

from loopwright.buffer.codec import decode_task, encode_task
from loopwright.config import ReasoningGymConfig, ReasoningGymData
from loopwright.core.gym_entry import entry_of
from loopwright.data import open_source
from loopwright.errors import DataError, JudgeError
from loopwright.judgers import open_judgers
from loopwright.judgers.reasoning_gym import final_answer, judge
from loopwright.testing import score_one
from loopwright.types import Episode, Scored, Task


def tasks_of(family: str, count: int = 3, **settings: object) -> list[Task]:
    source = open_source(ReasoningGymData(family=family, size=count, **settings), Path())  # type: ignore[arg-type]
    return [source[index] for index in range(len(source))]


def answered(text: str) -> Episode:
    return Episode(({"role": "assistant", "content": text},), chains=())


def test_a_family_with_its_settings_its_seed_and_an_instruction() -> None:
    config = {"min_terms": 2, "max_terms": 2, "max_digits": 1}
    tasks = tasks_of("chain_sum", seed=7, config=config, instruction="Answer with the number only.")
    assert [task.id for task in tasks] == ["chain_sum:0", "chain_sum:1", "chain_sum:2"]
    for task in tasks:
        text = task.messages[0]["content"]
        assert text.endswith("\n\nAnswer with the number only.")
        expression = text.partition(":")[2].partition("=")[0]
        assert eval(expression) == int(task.truth)
    assert tasks == tasks_of("chain_sum", seed=7, config=config, instruction="Answer with the number only.")
    assert tasks != tasks_of("chain_sum", seed=8, config=config, instruction="Answer with the number only.")
    assert "<answer>" not in tasks_of("chain_sum", instruction="")[0].messages[0]["content"]


@pytest.mark.parametrize(
    ("settings", "words", "remedy"),
    [
        ({"family": "leg_countin"}, "reasoning_gym has no family 'leg_countin'", "did you mean 'leg_counting'?"),
        (
            {"family": "leg_counting", "config": {"max_animal": 3}},
            "reasoning_gym's leg_counting has no setting 'max_animal'",
            "did you mean 'max_animals'?",
        ),
        (
            {"family": "leg_counting", "config": {"max_animals": 1, "min_animals": 5}},
            "reasoning_gym's leg_counting refuses its config",
            "change data.config",
        ),
    ],
)
def test_what_is_refused(settings: dict[str, object], words: str, remedy: str) -> None:
    with pytest.raises(DataError) as caught:
        open_source(ReasoningGymData(**settings), Path())  # type: ignore[arg-type]
    assert words in caught.value.message
    assert remedy in caught.value.remedy


# Tuples, numbers as keys, numpy texts and several lines: what JSON would not keep.
@pytest.mark.parametrize(
    "family", ["leg_counting", "chain_sum", "arc_1d", "knights_knaves", "rotate_matrix", "countdown"]
)
def test_the_truth_scores_1_also_when_the_task_was_stored(family: str) -> None:
    for task in tasks_of(family):
        stored = decode_task(encode_task(task))
        assert stored == task
        for text in (f"So it is <answer>{task.truth}</answer>.", str(task.truth), f"I think that it is\n{task.truth}"):
            assert judge(stored, answered(text)) == Scored(1.0, answer=str(task.truth).strip())
        assert judge(stored, answered("I do not know")).value < 0.5


@pytest.mark.parametrize("family", ["graph_color", "rearc", "knights_knaves"])
def test_the_scorer_sees_the_entry_as_it_was_made(family: str) -> None:
    """graph_color looks vertices up by number, rearc compares tuples: JSON would change the score without a word."""
    (task,) = tasks_of(family, 1, seed=3)
    made = create_dataset(family, size=1, seed=3)[0]
    entry = entry_of(decode_task(encode_task(task)))
    assert (entry["question"], entry["answer"], entry["metadata"]) == (
        made["question"],
        made["answer"],
        made["metadata"],
    )


@pytest.mark.parametrize(
    ("text", "lines", "answer"),
    [
        ("12", 1, "12"),
        ("First 3.\n\nThen 4\n  ", 1, "Then 4"),
        ("a\nb\nc", 2, "b\nc"),
        ("<answer> 5 </answer> no: <answer>6</answer> done", 1, "6"),
        ("<answer>1 2\n3 4</answer>", 1, "1 2\n3 4"),
        ("<answer>never closed", 1, "<answer>never closed"),
        ("", 1, ""),
    ],
)
def test_the_final_answer(text: str, lines: int, answer: str) -> None:
    assert final_answer(text, lines) == answer


@pytest.mark.parametrize("family", ["countdown", "puzzle24", "simple_integration", "n_queens", "spiral_matrix"])
@pytest.mark.parametrize(
    "attack",
    [
        "__import__('pathlib').Path({file!r}).touch()",
        "open({file!r}, 'w')",
        "(lambda: open({file!r}, 'w'))()",
        "exec(bytes([112, 97, 115, 115]))",
        "S.__class__",
        "S(sstr(pri)+sstr(nt(7)))",
        "preview()",
    ],
)
def test_an_answer_is_never_run(
    family: str, attack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "written"
    monkeypatch.setattr("sympy.preview", lambda: file.touch())
    (task,) = tasks_of(family, 1)
    assert judge(task, answered(attack.format(file=str(file)))).value < 0.5
    assert not file.exists()
    assert not capsys.readouterr().out


@pytest.mark.parametrize("family", ["countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24"])
def test_expressions_are_read_as_far_as_they_only_compute(family: str) -> None:
    for task in tasks_of(family, 12):
        assert judge(task, answered(f"<answer>{task.truth}</answer>")).value == 1.0


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("log(x) + 1.5e-3 + C", 1.0),
        ("log(abs(x))/1", 0.0),
        ("ln(2*x)", 1.0),
        ("x1 + log(x)", 0.0),
        ("log(x) + Integral(0, x)", 0.0),
        ("log(x).real", 0.0),
    ],
)
def test_an_expression_has_numbers_letters_and_functions(answer: str, score: float) -> None:
    (task,) = tasks_of("simple_integration", 1)
    metadata = {**task.metadata, "entry": repr({"variable": "x", "integrand": "1/x"})}
    task = replace(task, truth="log(x) + C", metadata=metadata)
    assert judge(task, answered(answer)).value == score


def test_what_is_no_expression_scores_as_no_answer_does() -> None:
    (task,) = tasks_of("countdown", 1)
    texts = ("", "I do not know", "open('x')", "1 +", "9**9**9", "(9**9)**9**9")
    assert {judge(task, answered(text)).value for text in texts} == {0.01}


@pytest.mark.parametrize(
    ("family", "answer"),
    [("prime_factorization", "I do not know"), ("boxnet", '["up"]'), ("game_of_life", "7"), ("n_queens", "(" * 5000)],
)
def test_an_answer_that_the_scorer_cannot_read_is_wrong(family: str, answer: str) -> None:
    (task,) = tasks_of(family, 1)
    assert judge(task, answered(f"<answer>{answer}</answer>")).value < 0.1


@pytest.mark.parametrize("broken", [ValueError, ImportError])
def test_a_scorer_that_cannot_read_the_truth_is_a_failure_not_a_zero(
    broken: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    (task,) = tasks_of("leg_counting", 1)

    def score_answer(self: object, answer: str, entry: object) -> float:
        raise broken("no scorer today")

    monkeypatch.setattr("reasoning_gym.arithmetic.LegCountingDataset.score_answer", score_answer)
    with pytest.raises(broken, match="no scorer today"):
        judge(task, answered("2"))


def test_a_task_of_another_source_is_a_failure_not_a_zero() -> None:
    with pytest.raises(JudgeError, match="task 'sum' has no 'question' in its metadata"):
        judge(Task.ask("sum", "1+1?", truth=2), answered("2"))


@pytest.mark.real
async def test_the_judger_runs_in_a_worker_and_is_built_in() -> None:
    (task,) = tasks_of("leg_counting", 1)
    async with open_judgers(["reasoning_gym", "mine"], {"mine": ReasoningGymConfig()}, Path(), {}) as judgers:
        for name, judger in judgers.items():
            assert judger.name == name
            assert await score_one(judger, task, answered(task.truth)) == Scored(1.0, answer=task.truth)
        with pytest.raises(JudgeError, match="judger 'mine'"):
            await score_one(judgers["mine"], Task.ask("sum", "?"), answered("2"))
