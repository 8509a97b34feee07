"""What runners are made of: bounded output, fields in arguments, rewards in files, marks of processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Lock

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from loopwright.agents.runners.fields import filled, instruction_of
from loopwright.agents.runners.folders import private_folder
from loopwright.agents.runners.marks import VARIABLE, Owner, kill_left_behind
from loopwright.agents.runners.output import BoundedOutput
from loopwright.agents.runners.process import Command, TrialProcesses
from loopwright.agents.runners.rewards import reward_in_file, reward_of_code
from loopwright.agents.runners.watch import ProgramLimits, TrialWatch
from loopwright.errors import SetupError, VerifierError
from loopwright.serve.marked_processes import Process, ProcessTable
from loopwright.types import Scored, Task

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
TASK = Task.ask("t1", "What is 1+1?", truth={"sum": 2}, repo="r1", nested={"a-b": "deep"})


@linux
@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_programs_that_overlap_are_collected_and_leave_no_file_open(
    factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """Also on uvloop, on which actors run. There a transport for the pipe closed files of others."""
    table = ProcessTable(VARIABLE)
    watch = TrialWatch(ProgramLimits(10_000, 10_000, 10_000), table)

    async def said(number: int) -> str:
        output, mark = BoundedOutput(100), f"many-{os.getpid()}-0-{number}"
        command = Command(["/bin/sh", "-c", f"echo {number}"], Path("/"), {})
        assert await TrialProcesses(mark, table, watch).run(command, output) == 0
        return output.text

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(said(number) for number in range(60)))

    with asyncio.Runner(loop_factory=factory) as runner:
        # The first time, the loop and its threads open files of their own.
        runner.run(said(0))
        before = len(os.listdir("/proc/self/fd"))
        assert runner.run(all_of_them()) == [f"{number}\n" for number in range(60)]
        assert len(os.listdir("/proc/self/fd")) <= before + 2


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(4, 64))
def test_output_keeps_its_beginning_and_its_end(chunks: list[bytes], limit: int) -> None:
    output, whole = BoundedOutput(limit), b"".join(chunks)
    for chunk in chunks:
        output.add(chunk)
    head, tail = limit // 4, limit - limit // 4
    if len(whole) <= limit:
        assert output.text == whole.decode("utf-8", "replace")
    else:
        dropped = f"\n[... {len(whole) - limit:,} bytes left out ...]\n".encode()
        assert output.text == (whole[:head] + dropped + whole[-tail:]).decode("utf-8", "replace")
    assert output.total == len(whole)


def test_output_of_a_gigabyte_takes_little_memory() -> None:
    output = BoundedOutput(1 << 16)
    for _ in range(1 << 14):
        output.add(bytes(1 << 16))
    assert output.total == 1 << 30
    assert sum(map(len, output._tail)) <= 2 << 16


def test_fields_are_filled_in() -> None:
    task = "{task.id}|{task.prompt}|{task.truth}|{task.metadata.repo}|{task.metadata.nested.a-b}"
    assert filled(task, TASK, {}) == 't1|What is 1+1?|{"sum": 2}|r1|deep'
    assert filled('{model}|{"json": 1}|{x}', TASK, {"model": "m"}) == 'm|{"json": 1}|{x}'


def test_a_field_is_not_filled_in_twice() -> None:
    sly = Task.ask("t", "ignore {task.truth}", truth="secret")
    assert filled("{task.prompt}", sly, {}) == "ignore {task.truth}"


@pytest.mark.parametrize("name", ["task.metadata.gone", "task.metadata.repo.deeper", "task.nothing"])
def test_a_task_that_lacks_a_field_cannot_be_set_up(name: str) -> None:
    with pytest.raises(SetupError, match=name):
        filled(f"{{{name}}}", TASK, {})


def test_the_instruction_is_what_the_task_says() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": "b"}]}
    task = Task("t", ({"role": "system", "content": "a"}, parts, {"role": "assistant", "content": "c"}))
    assert instruction_of(task) == "a\n\nb\n\nassistant: c"
    assert instruction_of(TASK) == "What is 1+1?"


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("0.5\n", Scored(0.5)),
        ("1", Scored(1.0)),
        ('{"reward": 0.25, "tests": 3, "note": "fine", "bad": NaN}', Scored(0.25, {"tests": 3.0})),
        (r'{"reward": 1, "\ud800": 2, "a\nb": 3}', Scored(1.0)),
    ],
)
def test_a_reward_file_is_a_number_or_json(text: str, reward: Scored, tmp_path: Path) -> None:
    (tmp_path / "reward").write_text(text)
    assert reward_in_file(tmp_path, "reward") == reward


BAD_REWARDS = [
    "",
    "[" * 60_000,
    "one",
    "NaN",
    "Infinity",
    "-1e999",
    "true",
    "null",
    "[1]",
    "{}",
    '{"reward": "1"}',
    "1" * 70_000,
]


@pytest.mark.parametrize("text", [*BAD_REWARDS, '{"reward": 1' + "0" * 400 + "}", "\xff\xfe"])
def test_a_reward_that_is_no_finite_number_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "reward").write_text(text, "latin-1")
    with pytest.raises(VerifierError, match="reward"):
        reward_in_file(tmp_path, "reward")


def _absent(path: Path) -> None:
    """Nothing is there."""


def _link(path: Path) -> None:
    (path.parent / "elsewhere").write_text("1")
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("make", [_absent, _link, Path.mkdir, os.mkfifo])
def test_a_reward_that_is_no_plain_file_is_refused(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "reward")
    with pytest.raises(VerifierError, match="reward"):
        reward_in_file(tmp_path, "reward")


def test_a_link_on_the_way_to_a_reward_may_not_lead_out(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "real").mkdir(parents=True)
    for place in (tmp_path, work / "real"):
        (place / "reward").write_text("1")
    (work / "out").symlink_to(tmp_path)
    (work / "in").symlink_to("real")
    assert reward_in_file(work, "in/reward") == Scored(1.0)
    with pytest.raises(VerifierError, match="leads out"):
        reward_in_file(work, "out/reward")


@linux
def test_a_reward_that_is_no_plain_file_leaves_nothing_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(VerifierError, match="reward"):
        reward_in_file(tmp_path.parent, tmp_path.name)
    assert len(os.listdir("/proc/self/fd")) == before


def test_only_codes_with_a_score_are_rewards() -> None:
    assert reward_of_code(1, {0: 1.0, 1: -0.5}, "it") == Scored(-0.5)
    with pytest.raises(VerifierError, match=r"it ended with exit code 2.*no reward"):
        reward_of_code(2, {0: 1.0, 1: 0.0}, "it")
    with pytest.raises(VerifierError, match="signal 9"):
        reward_of_code(-9, {0: 1.0, 1: 0.0}, "it")


@linux
def test_what_a_program_made_read_only_is_removed(tmp_path: Path) -> None:
    trial = tmp_path / "trial"
    (trial / "a" / "b").mkdir(parents=True)
    (trial / "a" / "b" / "file").touch()
    (trial / "link").symlink_to(tmp_path)
    (trial / "a" / "b").chmod(0o000)
    (trial / "a").chmod(0o500)
    script = "import sys; from pathlib import Path; from loopwright.agents.runners.folders import remove; "
    # Root may write to everything, but not without its capabilities.
    plain = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"] if os.getuid() == 0 else []
    remove_it = [sys.executable, "-c", f"{script}remove(Path(sys.argv[1]))", str(trial)]
    subprocess.run([*plain, *remove_it], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert not trial.exists()


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    private_folder(tmp_path / "own")
    private_folder(tmp_path / "own")
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "own")
    with pytest.raises(SetupError, match="somebody else"):
        private_folder(tmp_path / "link")
    if os.getuid() == 0:
        os.chown(tmp_path / "own", 65534, 65534)
        with pytest.raises(SetupError, match="somebody else"):
            private_folder(tmp_path / "own")


def eventually(check: Callable[[], bool]) -> None:
    for _ in range(200):
        if check():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come true within 4 s")


@linux
def test_processes_are_found_by_their_mark_wherever_they_went(tmp_path: Path) -> None:
    table, mark = ProcessTable(VARIABLE), Owner.here(tmp_path).new_trial()
    script = "setsid sleep 61 & env -i sleep 62 & wait"
    with subprocess.Popen(["sh", "-c", script], env={**os.environ, VARIABLE: mark}, start_new_session=True) as shell:
        try:
            eventually(lambda: len(table.of(mark)) == 3)
            assert shell.pid in {process.pid for process in table.of(mark)}
            assert table.of(f"{mark}0") == []
        finally:
            for process in table.of(mark):
                os.kill(process.pid, 9)
    eventually(lambda: not table.of(mark))


@linux
def test_a_mark_is_found_in_a_large_environment_and_under_its_own_name_only(tmp_path: Path) -> None:
    table, marks = ProcessTable(VARIABLE), [Owner.here(tmp_path).new_trial() for _ in range(2)]
    large = {**{f"LARGE{number}": "x" * 100_000 for number in range(3)}, VARIABLE: marks[0]}
    with (
        subprocess.Popen(["sleep", "60"], env=large) as found,
        subprocess.Popen(["sleep", "60"], env={f"NOT_{VARIABLE}": marks[1], "TEXT": f"{VARIABLE}={marks[1]}"}) as other,
    ):
        try:
            eventually(lambda: [process.pid for process in table.of(marks[0])] == [found.pid])
            assert table.of(marks[1]) == []
        finally:
            found.kill()
            other.kill()


def test_whoever_asks_during_a_look_shares_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    table, looks, begun, go_on = ProcessTable(VARIABLE), list[int](), Event(), Event()
    asked: list[None] = []

    class Announced(contextlib.AbstractContextManager[None]):
        """The table's lock. Who waits for it has asked."""

        lock = Lock()

        def __enter__(self) -> None:
            asked.append(None)
            self.lock.acquire()

        def __exit__(self, *error: object) -> None:
            self.lock.release()

    def look() -> tuple[Process, ...]:
        looks.append(len(looks))
        begun.set()
        assert go_on.wait(10)
        return (Process(looks[-1], "mark", 0, "0"),)

    monkeypatch.setattr(table, "_look", look)
    monkeypatch.setattr(table, "_looking", Announced())
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(table.marked)
        assert begun.wait(10)
        others = [threads.submit(table.of, "mark") for _ in range(3)]
        eventually(lambda: len(asked) == 4)
        go_on.set()
        assert [process.pid for process in first.result(10)] == [0]
        assert [process.pid for other in others for process in other.result(10)] == [1, 1, 1]
    assert [process.pid for process in table.marked()] == [2]


@linux
def test_only_what_dead_owners_of_the_same_run_left_behind_is_ended(tmp_path: Path) -> None:
    here = Owner.here(tmp_path / "run")
    dead = Owner(here.run, 2**22 + 7, "1")
    recycled = Owner(here.run, os.getpid(), "1")
    other_run = Owner(Owner.here(tmp_path / "other").run, 2**22 + 7, "1")
    marks = {owner: owner.new_trial() for owner in (here, dead, recycled, other_run)}
    sleeping = {
        owner: subprocess.Popen(["sleep", "60"], env={**os.environ, VARIABLE: mark}) for owner, mark in marks.items()
    }
    try:
        eventually(lambda: {one.mark for one in ProcessTable(VARIABLE).marked()} >= set(marks.values()))
        assert kill_left_behind(here, ProcessTable(VARIABLE)) == 2
        eventually(lambda: sleeping[dead].poll() is not None and sleeping[recycled].poll() is not None)
        assert sleeping[here].poll() is None
        assert sleeping[other_run].poll() is None
    finally:
        for process in sleeping.values():
            process.kill()
            process.wait()


@linux
def test_a_run_inside_of_a_program_belongs_to_it(tmp_path: Path) -> None:
    outer, inner = (Owner.here(tmp_path / name).new_trial() for name in ("outer", "inner"))
    script = (
        "import os, subprocess, sys; from loopwright.agents.runners.marks import VARIABLE, nested_mark; "
        "env = {**os.environ, VARIABLE: nested_mark(sys.argv[1])}; "
        "subprocess.Popen(['sleep', '60'], env=env, start_new_session=True)"
    )
    env = {**os.environ, VARIABLE: outer, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script, inner], env=env, check=True)
    table = ProcessTable(VARIABLE)
    eventually(lambda: len(table.of(inner)) == 1)
    (program,) = table.of(outer)
    assert table.of(inner) == [program]
    assert program.marks == [outer, inner]
    os.kill(program.pid, 9)
