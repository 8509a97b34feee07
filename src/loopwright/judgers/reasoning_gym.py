"""The built-in judger for reasoning_gym's tasks: the family's own scorer, its score kept as it is.

It runs in a worker with a deadline, as a user's function does. Some scorers evaluate the answer as Python; an answer is
what a model wrote, so it is made harmless before they see it.
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
"""Their scorers call eval() on the answer where a literal is meant."""

EVALUATES_EXPRESSIONS = frozenset(
    {"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"}
)
"""Their scorers hand the answer to sympy, which calls eval() with all of Python's built-in functions at hand."""

FUNCTIONS = frozenset(
    {"Abs", "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "cot", "csc"}
    | {"exp", "ln", "log", "pi", "sec", "sin", "sinh", "sqrt", "tan", "tanh"}
)
"""What an expression may name, beside single letters and what its own truth names."""

# No texts, no attributes, no brackets: nothing that could do more than compute.
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
    # What may not be read counts as no answer at all, which has a score of its own in some families.
    score = _score(_scorer(family, json.dumps(config)), answer if readable else "", entry)
    return Scored(score, answer=answer)


def final_answer(text: str, lines: int = 1) -> str:
    """What stands in the last <answer>...</answer>; without one, the last `lines` lines that are not blank."""
    if tagged := TAGGED.findall(text):
        return str(tagged[-1]).strip()
    written = [line for line in text.strip().splitlines() if line.strip()]
    return "\n".join(written[-lines:]).strip()


def _score(scorer: Any, answer: str, entry: dict[str, Any]) -> float:
    """What the scorer gives; 0 for an answer that it cannot read, if it can read the truth."""
    try:
        return float(scorer.score_answer(answer, entry))
    except (ImportError, MemoryError):
        raise
    except Exception:  # many scorers expect the shape of a right answer, and raise whatever comes of another one
        scorer.score_answer(entry["answer"], entry)
        return 0.0


def _may_be_computed(answer: str, truth: str) -> bool:
    """Whether it names nothing but functions, and its numbers stay small: 9**9**9 would take for ever."""
    return _names(answer) <= FUNCTIONS | _names(truth) and stays_small(answer)


def _names(expression: str) -> set[str]:
    """The names of more than one letter in an expression; whatever is no expression is a name."""
    tokens = list(TOKEN.finditer(expression))
    if sum(len(token[0]) for token in tokens) != len(expression):
        return {expression}
    return {token["name"] for token in tokens if token["name"] and len(token["name"]) > 1}


@lru_cache
def _scorer(family: str, config: str) -> Any:
    """The generator that the task came from, with whatever seed: it scores by the entry that it is given."""
    scorer = create_dataset(family, size=1, seed=0, **json.loads(config))
    if family in EVALUATES_LITERALS:
        # A name in the module comes before the built-in one, in this worker process only.
        vars(sys.modules[type(scorer).__module__])["eval"] = ast.literal_eval
    return scorer
