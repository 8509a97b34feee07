"""A large finished run, written in bulk: its database, its archive and its metrics, as a training would leave them."""

from __future__ import annotations

import json
import math
import random
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loopwright.buffer.archive import Archive, Parcel, ParcelKind
from loopwright.buffer.codec import encode_chains, encode_task
from loopwright.buffer.payload_file import Payload
from loopwright.buffer.rows import RolloutRow, to_row
from loopwright.buffer.storage.schema import writing
from loopwright.buffer.token_numbers import encode_numbers
from loopwright.runs.run_folder import RunFolder
from loopwright.types import (
    Episode,
    Rollout,
    RolloutKey,
    Scored,
    Task,
    Timing,
    TokenChain,
    TrainedChain,
    TrainedRollout,
)

EDITION = 2
"""Goes up when what is made changes."""
GROUP, TOKENS, LONG_TOKENS = 8, 300, 100_000
KEPT_STEPS = 5
"""The latest steps are still in the database, as before the next checkpoint."""
STEP_SECONDS = 90.0
WORDS = tuple("count the apples on the table then add both numbers and write the answer with a short reason".split())  # noqa: SIM905


@dataclass(frozen=True, slots=True)
class LargeRun:
    """Each of `steps` trained `rollouts` rollouts."""

    steps: int
    rollouts: int

    @property
    def groups(self) -> int:
        return self.rollouts // GROUP

    @property
    def long_chain(self) -> str:
        """The key of the rollout with the long chain: the first of the step in the middle."""
        return str(RolloutKey("train", (self.steps // 2 - 1) * self.groups, 0))

    @property
    def only_text(self) -> str:
        """A text of one rollout, 50 steps before the end."""
        return f"rollout {max(0, self.steps - 50) * self.groups}-3"


def make_large_run(cache: Path, run: LargeRun) -> Path:
    """The run's folder. It is made if it is not there, under another name first."""
    path = cache / f"run-{run.steps}x{run.rollouts}-{EDITION}"
    if not path.exists():
        draft = path.with_name(f"{path.name}.tmp")
        shutil.rmtree(draft, ignore_errors=True)
        with RunFolder.open(draft, {"model": {"path": "made-up"}, "trainer": {"steps": run.steps}}) as folder:
            _write_database(folder, run)
            _write_metrics(folder, run)
        draft.rename(path)
    print(f"{path}: {size_of(path):,} bytes", file=sys.stderr)
    return path


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


class Tokens(NamedTuple):
    """One chain as it is stored, and what its train step computed of it."""

    chains: bytes
    numbers: bytes


class Made(NamedTuple):
    """One rollout: its row, and what the database keeps of its training."""

    draw: int
    row: RolloutRow
    messages: str
    tokens: Tokens
    advantage: float


def _write_database(folder: RunFolder, run: LargeRun) -> None:
    dice = np.random.default_rng(0)
    shelf = [_tokens(dice, TOKENS) for _ in range(run.rollouts)]
    archive = Archive(folder.path / "archive")
    with writing(folder.rollouts) as db, closing(db.cursor()) as cursor:
        cursor.execute("PRAGMA synchronous = OFF")
        for step in range(1, run.steps + 1):
            made, is_archived = list(_rollouts(run, step, shelf, dice)), step <= run.steps - KEPT_STEPS
            if is_archived:
                payloads = [Payload("train", one.draw, 0, one.row.member, 0, one.messages, *one.tokens) for one in made]
                archive.write(Parcel(ParcelKind.TRAINED, step), payloads)
            cursor.execute("BEGIN")
            _insert(cursor, run, step, made, is_archived)
            cursor.execute("COMMIT")


def _rollouts(run: LargeRun, step: int, shelf: Sequence[Tokens], dice: np.random.Generator) -> Iterator[Made]:
    """The rollouts of one step. Everything but the texts and the rewards is taken from a few."""
    first, started = (step - 1) * run.groups, _at(step) - STEP_SECONDS
    rewards = dice.random(run.rollouts) < 0.3 + 0.5 * step / run.steps
    order, chance = dice.permutation(run.rollouts), random.Random(step)
    plain = to_row(_rollout(Scored(0.0)))
    scored = [to_row(_rollout(Scored(value))).reward for value in (0.0, 1.0)]
    for number in range(run.rollouts):
        draw, member = first + number // GROUP, number % GROUP
        is_long = str(RolloutKey("train", draw, member)) == run.long_chain
        said = f"rollout {draw}-{member}: {' '.join(chance.choices(WORDS, k=60))}"
        asked = {"role": "user", "content": f"What is {draw} + {draw % 7}?"}
        yield Made(
            draw,
            plain._replace(member=member, reward=scored[int(rewards[number])], started=started, oldest=step - 1),
            json.dumps([asked, {"role": "assistant", "content": said}]),
            _tokens(dice, LONG_TOKENS) if is_long else shelf[order[number]],
            0.5 if rewards[number] else -0.5,
        )


def _insert(cursor: sqlite3.Cursor, run: LargeRun, step: int, made: Sequence[Made], is_archived: bool) -> None:
    first, at = (step - 1) * run.groups, _at(step)
    draws = range(first, first + run.groups)
    cursor.executemany(
        "INSERT INTO groups (task_set, draw, round, task, version, newest, status, step, expiries)"
        " VALUES ('train', ?, 0, ?, ?, ?, 'consumed', ?, 0)",
        [(draw, encode_task(_task(draw)), step - 1, step - 1, step) for draw in draws],
    )
    names, marks = ", ".join(RolloutRow._fields), ", ".join("?" * len(RolloutRow._fields))
    payloads = [(None, None, None) if is_archived else (one.messages, *one.tokens) for one in made]
    cursor.executemany(
        f"INSERT INTO rollouts (task_set, draw, round, expiries, {names}) VALUES ('train', ?, 0, 0, {marks})",
        [
            (one.draw, *one.row._replace(messages=messages, chains=chains))
            for one, (messages, chains, _) in zip(made, payloads, strict=True)
        ],
    )
    cursor.executemany(
        "INSERT INTO trained (task_set, draw, round, member, attempt, advantage, token_weight, loss_terms, numbers)"
        " VALUES ('train', ?, 0, ?, 0, ?, 0.001, 0.1, ?)",
        [
            (one.draw, one.row.member, one.advantage, numbers)
            for one, (_, _, numbers) in zip(made, payloads, strict=True)
        ],
    )
    cursor.executemany(
        "INSERT INTO trail (task_set, draw, round, member, attempt, event, version, step, lineage, at)"
        " VALUES ('train', ?, 0, ?, ?, ?, NULL, ?, 0, ?)",
        [
            *((one.draw, one.row.member, 0, "stored", None, at) for one in made),
            *((draw, None, None, event, None, at) for event in ("drawn", "completed") for draw in draws),
            *((draw, None, None, "consumed", step, at) for draw in draws),
        ],
    )


def _task(draw: int) -> Task:
    return Task.ask(f"task {draw}", f"What is {draw} + {draw % 7}?", truth=draw + draw % 7)


def _rollout(reward: Scored, chains: tuple[TokenChain, ...] = ()) -> Rollout:
    episode = Episode(_task(0).messages, chains)
    return Rollout(RolloutKey("train", 0, 0), _task(0), episode, reward, Timing(1.0, 20.0, 0.5))


def _tokens(dice: np.random.Generator, tokens: int) -> Tokens:
    mask = np.arange(tokens) >= tokens // 6
    logprobs = np.where(mask, -dice.exponential(0.4, tokens), 0.0).astype(np.float32)
    ids = dice.integers(0, 49_000, tokens).astype(np.int32)
    chain = TokenChain(ids, mask, logprobs, np.where(mask, 1, -1).astype(np.int32))
    rollout = _rollout(Scored(0.0), (chain,))
    places = np.flatnonzero(mask).astype(np.int32)
    losses = (dice.normal(0, 1e-3, len(places))).astype(np.float32)
    trained = TrainedChain(0, places, logprobs[places] + np.float32(1e-3), losses)
    return Tokens(encode_chains((chain,)), encode_numbers(TrainedRollout(rollout.key, 0.5, 0.001, (trained,)), rollout))


def _at(step: int) -> float:
    return 1_760_000_000.0 + STEP_SECONDS * step


def _write_metrics(folder: RunFolder, run: LargeRun) -> None:
    with folder.metrics.open("w") as metrics, folder.events.open("w") as events:
        for step in range(1, run.steps + 1):
            metrics.write(json.dumps(metrics_line(step, run.steps)) + "\n")
            for name, begin, end in (("wait", 90, 40), ("train", 40, 5), ("sync", 5, 0)):
                start, stop = _at(step) - begin, _at(step) - end
                span = {"name": name, "step": step, "start": start, "end": stop, "who": "Task-1", "ok": True}
                events.write(json.dumps({**span, "error": None, "facts": {}}) + "\n")


def metrics_line(step: int, steps: int) -> dict[str, float]:
    """Sixty numbers, as many as a run writes."""
    numbers = {f"other/{number}": math.sin(step * number) for number in range(40)}
    share = step / steps
    return {
        "step": step,
        "time": _at(step),
        "reward/mean": 0.3 + 0.5 * share + 0.03 * math.sin(step),
        "reward/std": 0.4,
        "response/tokens": 250.0 + 3 * math.sin(step / 9),
        "response/truncated": 0.05,
        "learner/entropy": 1.0 - 0.4 * share,
        "learner/loss": 0.01 * math.cos(step),
        "learner/grad_norm": 0.5 + 0.1 * math.sin(step / 3),
        "learner/mismatch_mean": 0.003,
        "groups/trained": 64.0,
        "groups/size": 8.0,
        "groups/filtered": 4.0,
        "groups/failed": 0.0,
        "time/wait": 50.0,
        "time/train": 35.0,
        "time/sync": 5.0,
        **numbers,
    }
