"""A run that is killed at random moments, and audited after every one of them.

A life is `loopwright train` in a session of its own, killed as a whole with SIGKILL. The next one is the same command.
Its length is counted in train steps, so that a slow machine does not spare a run its later moments; where within a step
it ends is a matter of time.
A run with actors, or with a learner of several ranks, also loses one of them in every other life, before it is killed
itself; a rank may be stopped instead of killed. Of that loss the run has to recover by itself.
A run that comes to its end before it was killed often enough starts over, so every kill hits a run at work.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from loopwright.runs.run_folder import RunFolder
from loopwright.track.jsonl import read_jsonl
from tools.chaos.life import Life

LONGEST_SECONDS = 300.0
"""How long a life may take until it works, and then until it is killed."""
FINISHING_SECONDS = 600.0
"""How long the last life may take to finish the run."""
EARLY = 0.15
"""The share of kills that come before the run works: while it loads, or brings back what the last life left."""
LOSES_PART = 0.5
"""The share of lives in which an actor or a rank is lost first, if there are any."""
STOPS = 0.3
"""The share of lost ranks that are stopped: they live, and say nothing any more."""
LOADING_SECONDS, STEP_SECONDS = 4.0, 0.5
"""Within which such a kill, or one within a step, comes."""


class ChaosError(Exception):
    """Something was lost, doubled or left behind, or the run does not go on."""


class Chaos:
    """Kills the run of `config` in `folder`. `say` is told of every life."""

    def __init__(
        self,
        config: Path,
        folder: Path,
        chance: random.Random,
        *,
        longest: int = 6,
        say: Callable[[str], None] = print,
    ) -> None:
        self._config = config
        self._folder = RunFolder(folder)
        self._output = config.parent / "chaos.txt"
        self._chance = chance
        self._longest = longest
        self._say = say
        self._lives: list[Life] = []
        self._lost_ranks = 0

    def run(self, kills: int) -> None:
        """Kill it so often, then let it finish."""
        self._start_over()
        for number in range(1, kills + 1):
            started = time.monotonic()
            while not self._kill_one():
                self._say("     it had finished, and starts over")
                self._start_over()
            self._audit()
            seconds = time.monotonic() - started
            self._say(f"{number:4d} killed after step {self._last_step()}; {seconds:.1f} s with the audit, clean")
        with self._life() as life:
            code = life.wait(FINISHING_SECONDS)
        if code != 0:
            raise self._error(f"the last life ended with exit code {code}")
        self._audit()
        self._check_steps()
        for life in self._lives:
            life.wait_for_rays_own()
        ranks = f" and {self._lost_ranks} lost ranks" if self._lost_ranks else ""
        self._say(f"done: {kills} kills{ranks}, {self._last_step()} steps, nothing lost and nothing doubled")

    def _kill_one(self) -> bool:
        """Live until a random moment. False when the run finished before."""
        early, steps, moment, loses_part, stops = (
            self._chance.random() < EARLY,
            self._chance.randint(0, self._longest),
            self._chance.random(),
            self._chance.random() < LOSES_PART,
            self._chance.random() < STOPS,
        )
        with self._life() as life:
            if early:
                time.sleep(moment * LOADING_SECONDS)
            else:
                self._until_worked(life)
                if loses_part:
                    self._lose(life.actors(), signal.SIGKILL)
                    self._lost_ranks += self._lose(life.ranks(), signal.SIGSTOP if stops else signal.SIGKILL)
                self._until_step(life, self._last_step() + steps)
                time.sleep(moment * STEP_SECONDS)
            if life.is_alive:
                life.kill()
                return True
        if life.code != 0:
            raise self._error(f"the run ended by itself with exit code {life.code}")
        return False

    def _lose(self, processes: Sequence[int], by: signal.Signals) -> bool:
        """Send the signal to one of them, if there are any."""
        if not processes:
            return False
        victim = self._chance.choice(sorted(processes))
        with suppress(ProcessLookupError):
            os.kill(victim, by)
        return True

    def _until_worked(self, life: Life) -> None:
        """Wait until the life has stored something, or for its end."""
        before = self._traces()
        self._until(lambda: self._traces() != before or not life.is_alive, "the run begins to work")

    def _until_step(self, life: Life, goal: int) -> None:
        self._until(lambda: self._last_step() >= goal or not life.is_alive, f"the run comes to step {goal}")

    def _audit(self) -> None:
        """After a kill before the first commit there is nothing to audit yet."""
        if not self._folder.rollouts.exists():
            return
        command = [sys.executable, "-m", "loopwright.cli", "audit", str(self._folder.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise self._error(f"the audit failed:\n{done.stdout}{done.stderr}")

    def _check_steps(self) -> None:
        """Every step was trained, and its numbers were recorded once."""
        trained = [record["step"] for record in read_jsonl(self._folder.metrics) if "learner/loss" in record]
        if trained != list(range(1, len(trained) + 1)):
            raise self._error(f"the recorded train steps are {trained}")

    def _last_step(self) -> int:
        return max((record["step"] for record in read_jsonl(self._folder.metrics)), default=0)

    def _start_over(self) -> None:
        shutil.rmtree(self._folder.path, ignore_errors=True)

    def _life(self) -> Life:
        life = Life([sys.executable, "-m", "loopwright.cli", "train", str(self._config)], self._output)
        self._lives.append(life)
        return life

    def _traces(self) -> tuple[int, ...]:
        """Changes when the run does something that lasts."""
        wal = self._folder.rollouts.with_name(f"{self._folder.rollouts.name}-wal")
        found = [path.stat() for path in (wal, self._folder.events) if path.exists()]
        return tuple(number for stat in found for number in (stat.st_mtime_ns, stat.st_size))

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LONGEST_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise self._error(f"waited {LONGEST_SECONDS:g} s until {what}")
            time.sleep(0.01)

    def _error(self, what: str) -> ChaosError:
        said = self._output.read_text(errors="replace")[-4000:] if self._output.exists() else ""
        return ChaosError(f"{what}\nthe run in {self._folder.path} is left as it is; its last words:\n{said}")
