"""The built-in judger for reasoning_gym's tasks. It uses the family's own scorer, and keeps the score unchanged.

It runs in a worker with a deadline, like a user's function. Some scorers evaluate the answer as Python. A model wrote
the answer, so it is made harmless before they get it.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from functools import lru_cache
from typing import Any

from reasoning_gym.factory import create_dataset

from loopwright.core.expression_size import stays_small
from loopwright.core.gym_entry import CONFIG, FAMILY, entry_of
from loopwright.errors import JudgeError
from loopwright.types import Episode, Scored, Task

TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)

EVALUATES_LITERALS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Families whose scorers call eval() on the answer although it should be a literal."""

EVALUATES_EXPRESSIONS = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
"""Families whose scorers pass the answer to sympy, which calls eval() with all of Python's built-in functions."""

FUNCTIONS = frozenset(
    {"Abs", "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "cot", "csc"}
    | {"exp", "ln", "log", "pi", "sec", "sin", "sinh", "sqrt", "tan", "tanh"}
)
"""The names that an expression may use, besides single letters and the names in its truth."""

# There are no strings, attributes or square brackets, so nothing can do more than compute.
TOKEN = re.compile(r"(?P<name>[A-Za-z]\w*)|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+*/^(),\s]", re.ASCII)


def judge(task: Task, episode: Episode) -> Scored:
    """Score the final answer of the episode."""
    try:
        entry, family, config = entry_of(task), task.metadata[FAMILY], task.metadata[CONFIG]
    except KeyError as error:
        raise JudgeError(
            f"task {task.id!r} has no {error} in its metadata",
            remedy="use the judger reasoning_gym with data of kind reasoning_gym",
        ) from error
    answer = final_answer(episode.answer, lines=str(task.truth).count("\n") + 1)
    readable = family not in EVALUATES_EXPRESSIONS or _may_be_computed(answer, str(task.truth))
    # An answer that may not be evaluated counts as no answer. Some families have a score for that.
    score = _score(_scorer(family, json.dumps(config)), answer if readable else "", entry)
    return Scored(score, answer=answer)


def final_answer(text: str, lines: int = 1) -> str:
    """The text in the last <answer>...</answer> or, without one, the last `lines` lines that are not blank."""
    if tagged := TAGGED.findall(text):
        return str(tagged[-1]).strip()
    written = [line for line in text.strip().splitlines() if line.strip()]
    return "\n".join(written[-lines:]).strip()


def _score(scorer: Any, answer: str, entry: dict[str, Any]) -> float:
    """The scorer's score. It is 0 for an answer that the scorer cannot read, if it can read the truth."""
    try:
        return float(scorer.score_answer(answer, entry))
    except (ImportError, MemoryError):
        raise
    except Exception:  # many scorers expect the form of a correct answer, and raise anything for another one
        scorer.score_answer(entry["answer"], entry)
        return 0.0


def _may_be_computed(answer: str, truth: str) -> bool:
    """Whether the answer uses only allowed names, and its numbers stay small: 9**9**9 would never end."""
    return _names(answer) <= FUNCTIONS | _names(truth) and stays_small(answer)


def _names(expression: str) -> set[str]:
    """The names of more than one letter in an expression. Anything that is no expression counts as a name."""
    tokens = list(TOKEN.finditer(expression))
    if sum(len(token[0]) for token in tokens) != len(expression):
        return {expression}
    return {token["name"] for token in tokens if token["name"] and len(token["name"]) > 1}


@lru_cache
def _scorer(family: str, config: str) -> Any:
    """The generator of the task's family. Its seed does not matter: it scores by the entry that it gets."""
    scorer = create_dataset(family, size=1, seed=0, **json.loads(config))
    if family in EVALUATES_LITERALS:
        # A name in the module replaces the built-in one, in this worker process only.
        vars(sys.modules[type(scorer).__module__])["eval"] = ast.literal_eval
    return scorer
