"""The tree of errors: drawn as it is, and whole after a trip to another process."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from loopwright import errors
from loopwright.errors import LoopwrightError

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, LoopwrightError)]


def drawn_tree() -> dict[str, str | None]:
    """Each class in the module's drawing, with the class that it hangs from."""
    above: dict[int, str] = {}
    tree: dict[str, str | None] = {}
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([│├└─ ]*)(\w+Error)\b", line)
        if found:
            depth = len(found[1]) // 4
            tree[found[2]] = above.get(depth - 1)
            above[depth] = found[2]
    return tree


def test_the_drawing_names_exactly_the_classes_that_exist() -> None:
    bases = {kind.__name__: kind.__mro__[1].__name__ if kind is not LoopwrightError else None for kind in CLASSES}
    assert drawn_tree() == bases
    assert len(bases) > 5


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_arrives_whole_in_another_process(kind: type[LoopwrightError]) -> None:
    error = kind("line 3 is no JSON", remedy="mend it", file="tasks.jsonl", line=3, problems=["one", "two"])
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is kind
    assert arrived.message == "line 3 is no JSON"
    assert arrived.remedy == "mend it"
    assert arrived.facts == {"file": "tasks.jsonl", "line": 3, "problems": ["one", "two"]}
    assert str(arrived) == str(error) == "line 3 is no JSON\n  -> mend it"


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_needs_a_remedy(kind: type[LoopwrightError]) -> None:
    with pytest.raises(TypeError, match="remedy"):
        kind("something is wrong")  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_says_what_it_is_for(kind: type[LoopwrightError]) -> None:
    assert kind.__doc__ != LoopwrightError.__doc__ or kind is LoopwrightError
    assert kind.__doc__


def test_a_lost_learner_says_which_rank_why_and_its_last_words() -> None:
    error = errors.LearnerLostError.of_rank(1, "it was killed by SIGKILL", "Segmentation fault")
    assert error.facts == {"rank": 1, "cause": "it was killed by SIGKILL", "last_words": "Segmentation fault"}
    assert (
        error.message == "rank 1 of the learner is lost: it was killed by SIGKILL; its last words:\nSegmentation fault"
    )
    assert errors.LearnerLostError.of_rank(0, "silent", "").message == "rank 0 of the learner is lost: silent"
