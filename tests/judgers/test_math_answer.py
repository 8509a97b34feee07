"""Mathematical answers: a wrong one is 0; a truth that cannot be read, or a time-out, is a failure (R2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import math_verify
import pytest

from loopwright.config import MathAnswerConfig
from loopwright.errors import ConfigError, JudgeError
from loopwright.judgers import open_judgers
from loopwright.judgers.math_answer import _see_that_it_reads, judge
from loopwright.testing import score_one
from loopwright.types import Episode, Scored, Task


def said(answer: str) -> Episode:
    return Episode(({"role": "assistant", "content": answer},), ())


@pytest.mark.parametrize(
    ("answer", "truth", "expected"),
    [
        (r"So it is $\boxed{\frac{1}{2}}$.", "0.5", Scored(1.0, answer="1/2")),
        ("The answer is 0.5", r"\frac{1}{2}", Scored(1.0, answer="1/2")),
        (r"First \boxed{3}, no: \boxed{19}", 19, Scored(1.0, answer="19")),
        ("12 + 7 = 19, so the answer is 19.", 19, Scored(1.0, answer="19")),
        ("It costs $1,234", 1234, Scored(1.0, answer="1234")),
        (r"\boxed{(x+1)^2}", "x^2+2x+1", Scored(1.0, answer="(x + 1)**2")),
        (r"\boxed{18}", 19, Scored(0.0, answer="18")),
        ("-7", 7, Scored(0.0, answer="-7")),
        ("no idea", 7, Scored(0.0)),
        ("", 7, Scored(0.0)),
        (r"\boxed{\frac{}}", 7, Scored(0.0, answer=r"\frac{}")),
        (r"\boxed{1{,}234}", "1,234", Scored(1.0, answer="1234")),
        (r"\boxed{\frac{3}{4}}", "3/4", Scored(1.0, answer="3/4")),
        (r"\boxed{0.00001}", 1e-5, Scored(1.0, answer="1/100000")),
        (r"\boxed{x^2}", "the answer is $x^2$", Scored(1.0, answer="x**2")),
        (r"\boxed{\text{Evelyn}}", r"\text{Evelyn}", Scored(1.0, answer="evelyn")),
        (r"\boxed{50\%}", r"50\%", Scored(1.0, answer="1/2")),
        (r"\boxed{10^{5000}}", "10^{5000}", Scored(1.0)),
        (r"\boxed{10^{5000}}", 7, Scored(0.0)),
        (r"\boxed{1000!}", 7, Scored(0.0)),
        (r"\boxed{(1, 2)}", "(1,2)", Scored(1.0, answer="Interval.open(1, 2)")),
        (
            r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}",
            r"\begin{pmatrix}1\\2\end{pmatrix}",
            Scored(1.0, answer="Matrix([[1], [2]])"),
        ),
    ],
)
def test_answers(answer: str, truth: Any, expected: Scored) -> None:
    scored = judge(Task.ask("t", "?", truth=truth), said(answer))
    assert replace(scored, evidence=None) == expected
    assert scored.evidence is not None
    assert scored.evidence.endswith(f"the truth is {truth}")


@pytest.mark.parametrize("truth", [None, "", "seven", "a proof", True, [7], float("nan"), r"\frac{}"])
def test_a_truth_that_is_no_mathematics_is_the_tasks_fault(truth: Any) -> None:
    with pytest.raises(JudgeError, match="the truth of task 't9'") as caught:
        judge(Task.ask("t9", "?", truth=truth), said("7"))
    assert caught.value.facts["error"] == "WrongTruth"


def test_an_answer_that_the_library_cannot_read_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = math_verify.parse

    def parse(text: str, **settings: Any) -> Any:
        if "unspeakable" in text:
            raise RecursionError
        return whole(text, **settings)

    monkeypatch.setattr("math_verify.parse", parse)
    assert judge(Task.ask("t", "?", truth=7), said("unspeakable")).value == 0.0


@pytest.fixture
def nothing_is_known_of_the_library() -> Iterator[None]:
    _see_that_it_reads.cache_clear()
    yield
    _see_that_it_reads.cache_clear()


@pytest.mark.usefixtures("nothing_is_known_of_the_library")
@pytest.mark.parametrize("broken", [ImportError, MemoryError, RuntimeError])
def test_a_broken_library_is_a_failure_not_a_zero(broken: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(text: str, **_: Any) -> Any:
        raise broken

    monkeypatch.setattr("math_verify.parse", parse)
    with pytest.raises(broken):
        judge(Task.ask("t", "?", truth=7), said("7"))


@pytest.mark.usefixtures("nothing_is_known_of_the_library")
def test_a_library_that_hides_that_it_is_broken_is_a_failure_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("math_verify.parse", lambda text, **_: [text])
    with pytest.raises(JudgeError, match="reads no LaTeX"):
        judge(Task.ask("t", "?", truth=7), said(r"\boxed{7}"))


@pytest.mark.real
async def test_it_runs_in_a_worker_with_a_deadline_past_which_there_is_no_score() -> None:
    config = MathAnswerConfig(timeout_seconds=2.0)
    async with open_judgers(["sums"], {"sums": config}, Path(), {}) as judgers:
        sums = judgers["sums"]
        with pytest.raises(JudgeError, match=r"judger 'sums'.*no score within 2 s") as caught:
            await score_one(sums, Task.ask("t", "?", truth=7), said(r"\boxed{9^{9^{9^{9}}}}"))
        assert caught.value.facts["error"] == "Timeout"
        evidence = "the answer was read as 7; the truth is 7"
        assert await score_one(sums, Task.ask("t", "?", truth=7), said("7")) == Scored(1.0, {}, "7", evidence)
        with pytest.raises(JudgeError, match=r"judger 'sums'.*gives no score: the truth of task 't' is 'seven'"):
            await score_one(sums, Task.ask("t", "?", truth="seven"), said("7"))


async def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as caught:
        async with open_judgers(["math_answer"], {}, Path(), {}):
            pass
    assert "loopwright[math]" in caught.value.remedy
