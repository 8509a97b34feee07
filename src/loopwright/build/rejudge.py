"""Asks a judger about the rollouts that a run has stored. No model, no tasks and no cluster are used."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator
from typing import Any

from loopwright.config import BUILT_IN_JUDGERS, Loaded
from loopwright.config.base import needs_of
from loopwright.config.imports import split_symbol
from loopwright.config.judgers import made_of
from loopwright.config.needs import Need, Outside
from loopwright.config.problems import suggest
from loopwright.errors import ConfigError, RunError
from loopwright.judgers import open_judgers
from loopwright.runs.rejudged_scores import RejudgedScores
from loopwright.runs.run_folder import RunFolder
from loopwright.runs.stored_run import StoredRun
from loopwright.track.redacting import redactor_of
from loopwright.trainers.rejudge import Rejudging

FOLDER_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


async def rejudge_run(
    folder: RunFolder, ran: Loaded, asked: Loaded, name: str, *, task_sets: Collection[str] = (), fresh: bool = False
) -> tuple[RejudgedScores, int]:
    """Have judger `name` of `asked` score what the run `ran` has stored. Returns all its scores, and how many rollouts
    were judged now. `task_sets`: these only."""
    judgers = {**BUILT_IN_JUDGERS, **asked.config.judgers}
    if name not in judgers:
        raise ConfigError(f"there is no judger {name!r}", remedy=suggest(name, sorted(judgers), "the judgers are"))
    if not FOLDER_NAME.fullmatch(name):
        raise ConfigError(
            f"the judger's name {name!r} cannot be the name of a folder",
            remedy="give it a name of letters, digits, `-`, `_` and `.`",
        )
    chosen = _task_sets(ran, task_sets)
    identity = _identity(asked, name)
    run = StoredRun(folder.rollouts)
    with RejudgedScores.open(folder.rejudged / name, identity, fresh=fresh) as scores:
        async with open_judgers([name], asked.config.judgers, asked.base, asked.secrets, asked.objects) as opened:
            rejudging = Rejudging(run, opened[name], scores, chosen, attempts=asked.config.produce.judge_attempts)
            await rejudging.run(redactor_of(asked))
        return scores, rejudging.judged


def _task_sets(ran: Loaded, wanted: Collection[str]) -> frozenset[str]:
    """The task sets that a judger can score again. One whose rewards came from a program's folder is refused."""
    known = {one.name: one.agent for one in ran.config.task_sets}
    if unknown := sorted(set(wanted) - set(known)):
        remedy = suggest(unknown[0], sorted(known), "its task sets are")
        raise RunError(f"the run has no task set {unknown[0]!r}", remedy=remedy)
    chosen = frozenset(wanted or known)
    if from_folders := sorted(name for name in chosen if known[name].brings_reward):
        others = sorted(set(known) - set(from_folders))
        raise RunError(
            f"the rewards of task set {from_folders[0]!r} came from the folders of its programs, which are gone: "
            "a judger of episodes would score something else",
            remedy=" ".join(f"--task-set {one}" for one in others) + " judges the others"
            if others
            else "train such tasks with a judger of episodes to compare judgers",
        )
    return chosen


def _identity(asked: Loaded, name: str) -> dict[str, Any]:
    """All that decides the scores: the judger, those that it is made of, and the files that they name."""
    judgers = {**BUILT_IN_JUDGERS, **asked.config.judgers}
    used = sorted({name} | made_of([name], judgers))
    return {
        "judgers": {one: judgers[one].model_dump(mode="json") for one in used},
        "files": {file: digest for one in used for file, digest in _files(asked, needs_of(judgers[one]))},
    }


def _files(asked: Loaded, needs: Iterator[Need]) -> Iterator[tuple[str, str]]:
    for need in needs:
        if need.what is Outside.FILE:
            path = asked.base / need.name
        elif need.what is Outside.CODE and (file := split_symbol(need.name, asked.base).file) is not None:
            path = file
        else:
            continue
        if path.is_file():
            yield need.name, hashlib.sha256(path.read_bytes()).hexdigest()
