"""The life of a cluster: who may reach it, what it leaves behind, and what is left when its driver is killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopwright.build.cluster import open_run_cluster
from loopwright.cluster.folder import LONGEST, ray_folder, remove_leftovers
from loopwright.cluster.probe import examine_cluster
from loopwright.config import Loaded, RunConfig
from loopwright.errors import ConfigError
from loopwright.serve.marked_processes import ProcessTable, kill_all, read_proc

MARK = "XDG_LOOPWRIGHT_TEST"
"""A variable that children see, also those with a small environment."""
HERE = Path(__file__).parent
RAYLET = "/raylet/raylet "
"""In the command line of the raylet. Those of its agents name the raylet in other ways."""
LISTENS = "0A"
LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")
"""127.0.0.1, ::1 and ::ffff:127.0.0.1"""


class Driver:
    """A process of driver.py, with a home and a temporary folder of its own."""

    def __init__(self, place: Path, number: int, *address: str, **env: str) -> None:
        self.mark, self.killed_at = f"{place.name}-{number}", 0.0
        self._errors = (place / f"stderr-{number}").open("w+")
        self.run, self.home, self.temporary = place / "run", place / "home", place / "t"
        for folder in (self.home, self.temporary):
            folder.mkdir(exist_ok=True)
        seen = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "LOOPWRIGHT_"))},
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            MARK: self.mark,
            "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),
            **env,
        }
        self.process = subprocess.Popen(
            [sys.executable, HERE / "driver.py", self.run, *address],
            env=seen,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def told(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors()
        told: dict[str, Any] = json.loads(line)
        return told

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def end(self) -> None:
        kill_all(self.processes())
        self.process.communicate()
        self._errors.close()

    def processes(self) -> dict[int, str]:
        """The living processes of the run, with their command lines."""
        table = ProcessTable(MARK)
        return {one.pid: read_proc(one.pid, "cmdline").replace(b"\0", b" ").decode() for one in table.of(self.mark)}


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short path, as Ray needs for its sockets."""
    with tempfile.TemporaryDirectory(prefix="lw-") as name:
        yield Path(name)


@pytest.fixture
def start(place: Path) -> Iterator[Callable[..., Driver]]:
    drivers: list[Driver] = []

    def started(*address: str, **env: str) -> Driver:
        drivers.append(Driver(place, len(drivers), *address, **env))
        return drivers[-1]

    yield started
    for driver in drivers:
        driver.end()


def until(condition: Callable[[], object], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def listening(pid: int) -> list[str]:
    """The addresses at which a process listens, as the kernel writes them."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(descriptor))
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [row[1].partition(":")[0] for row in rows if row[3] == LISTENS and f"socket:[{row[9]}]" in inodes]


def living(numbers: list[int]) -> list[int]:
    return [pid for pid in numbers if read_proc(pid, "stat") and b") Z " not in read_proc(pid, "stat")]


def files(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*")]


def killed(driver: Driver, seconds: float) -> list[int]:
    """Kill the driver, and wait until its actors, their children and the raylet are gone. Returns who was there."""
    told = driver.told()
    raylets = [pid for pid, command in driver.processes().items() if RAYLET in command]
    there = [*told["actors"], *told["children"], *raylets]
    assert set(there) <= driver.processes().keys()
    driver.killed_at = time.monotonic()
    os.kill(driver.process.pid, signal.SIGKILL)
    until(lambda: not driver.processes().keys() & set(there), seconds)
    return there


@pytest.mark.real
def test_a_cluster_is_of_its_run_alone_and_leaves_nothing(start):
    """Not even what an earlier process of the run, which was killed, has left."""
    before = start()
    assert len(killed(before, 10)) >= 6
    (left,) = before.temporary.glob("lw-ray-*")
    shutil.rmtree(before.run / "actors", ignore_errors=True)
    driver = start(API_KEY="not for actors")
    told = driver.told()
    assert not left.exists()
    processes = driver.processes()
    assert told["address"] == "127.0.0.1"
    assert told["handlers"] == [True, True]
    assert len(told["token"]) == 64
    assert any(RAYLET in command for command in processes.values())
    addresses = [address for pid in processes for address in listening(pid)]
    assert len(addresses) > 5
    assert set(addresses) <= set(LOOPBACK)
    assert [told["folder"]] == [str(path) for path in driver.temporary.glob("lw-ray-*")]
    assert json.loads((driver.run / "ray.json").read_text()) == {"folder": told["folder"], "pid": driver.process.pid}
    # Another process of the same run does not remove the folder of one that lives.
    assert remove_leftovers(driver.run) == []

    os.kill(driver.process.pid, signal.SIGTERM)
    assert driver.told() == {"signal": signal.SIGTERM}
    driver.go_on()
    assert driver.told() == {"pending": "WorkerLostError"}
    assert driver.told() == {"stray": "RaySystemError"}
    assert driver.process.wait(30) == 0
    # A worker that Ray was just starting notices a moment later that it is not needed.
    until(lambda: not driver.processes(), 10)
    assert files(driver.home) == files(driver.temporary) == []
    assert sorted(files(driver.run)) == ["actors", "actors/loops-mine-0.log", "actors/ray.log"]
    assert (driver.run / "actors/loops-mine-0.log").read_text() == "a line with [redacted]\n"
    # What Ray says is in the run's log, and not on the screen.
    said = (driver.run / "actors/ray.log").read_text()
    assert "SIGTERM handler is not set" in said
    assert "(raylet) A worker died" in said
    (line,) = driver.errors().splitlines()
    assert line.startswith("loops-mine-1 is lost: ActorDiedError")


@pytest.mark.long
def test_nothing_of_a_killed_driver_is_left_after_70_seconds(start):
    driver = start()
    killed(driver, 10)
    passed = time.monotonic() - driver.killed_at
    # Two agents of Ray wait a minute for their raylet.
    until(lambda: not driver.processes(), 70 - passed)


@pytest.mark.real
def test_a_cluster_is_joined_with_its_token_only(shared_ray, monkeypatch):
    shared_ray.up()
    import ray

    address = ray.get_runtime_context().gcs_address
    found = examine_cluster(address)
    assert found.address == address
    assert [node.address for node in found.nodes] == ["127.0.0.1"]
    assert found.nodes[0].resources["CPU"] == 16
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with pytest.raises(ConfigError, match=f"joined at {address}: .*token is missing or incorrect") as caught:
        examine_cluster(address)
    assert "RAY_AUTH_TOKEN" in caught.value.remedy


@pytest.mark.real
def test_where_nobody_is_no_cluster_is_joined_and_none_is_started(place: Path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setenv(MARK, place.name)
    # The cluster of these tests may be up.
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with pytest.raises(ConfigError, match=r"joined at 127\.0\.0\.1:1: .*Connection refused"):
        examine_cluster("127.0.0.1:1")
    # There may be a cluster of another run on this machine, and its token keeps us out.
    with pytest.raises(ConfigError, match="joined at auto"):
        examine_cluster("auto")
    assert ProcessTable(MARK).of(place.name) == []


@pytest.mark.real
def test_a_joined_cluster_outlives_its_drivers_and_their_actors_do_not(shared_ray, start):
    shared_ray.up()
    import ray

    address, token = ray.get_runtime_context().gcs_address, os.environ["RAY_AUTH_TOKEN"]
    settings = {"RAY_AUTH_TOKEN": token, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    by_address = start(address, **settings)
    told = by_address.told()
    assert told["address"] == "127.0.0.1"
    assert told["folder"] is None
    assert told["handlers"] == [True, True]
    assert [command for command in by_address.processes().values() if RAYLET in command] == []
    by_address.go_on()
    assert by_address.process.wait(30) == 0
    until(lambda: not living(told["actors"]), 10)

    by_auto = start("auto", RAY_ADDRESS=address, **settings)
    told = by_auto.told()
    assert living(told["actors"])
    os.kill(by_auto.process.pid, signal.SIGKILL)
    until(lambda: not living([*told["actors"], *told["children"]]), 10)
    assert files(by_auto.temporary) == files(by_auto.home) == []
    assert ray.cluster_resources()["CPU"] == 16


@pytest.mark.parametrize("address", ["local", "ray://host:10001", "host", "", "host:port"])
def test_only_auto_and_addresses_can_be_joined(address, monkeypatch):
    with pytest.raises(ConfigError, match="neither `auto` nor host:port"):
        examine_cluster(address)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match="neither `auto` nor host:port"):
        examine_cluster("auto")


def test_the_folder_of_a_run_is_short_private_and_its_own(tmp_path: Path, monkeypatch):
    deep = tmp_path / ("deep" * 20)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with ray_folder(tmp_path / "one") as one, ray_folder(tmp_path / "two") as two:
        assert one != two
        assert len(str(one)) <= LONGEST
        assert one.stat().st_mode & 0o777 == 0o700
    assert not one.exists()


def test_a_folder_that_was_left_is_removed_and_others_are_not(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("loopwright.cluster.folder.LONGEST", 1000)
    with ray_folder(tmp_path / "other") as other, ray_folder(tmp_path / "run") as mine:
        left = mine.with_name(f"{mine.name[: mine.name.rindex('-')]}-1")
        (left / "session" / "logs").mkdir(parents=True)
        link = left.with_name(f"{left.name}1")
        link.symlink_to(other)
        assert remove_leftovers(tmp_path / "run") == [left]
        assert other.exists()
        assert mine.exists()
        assert not left.exists()


@pytest.mark.parametrize("actors", [{}, {"judgers": {"mine": {"kind": "integer_answer", "num_actors": 1}}}])
async def test_a_run_removes_what_was_left_whatever_it_needs_itself(tmp_path: Path, monkeypatch, actors):
    """Resumed without actors, or on somebody else's cluster: here nobody answers at its address."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("loopwright.cluster.folder.LONGEST", 1000)
    with ray_folder(tmp_path / "run") as mine:
        left = mine.with_name(f"{mine.name[: mine.name.rindex('-')]}-1")
    left.mkdir()
    agent = {"kind": "single_turn", "judger": "mine" if actors else "integer_answer"}
    sections = {
        "model": {"path": "smollm2"},
        "task_sets": [{"name": "train", "data": {"kind": "python", "path": "tasks.py:train"}, "agent": agent}],
        "trainer": {"run_dir": "run", "steps": 1},
        "cluster": {"address": "127.0.0.1:1"},
        **actors,
    }
    loaded = Loaded(RunConfig.model_validate(sections), tmp_path, {})
    with pytest.raises(ConfigError, match="Connection refused") if actors else contextlib.nullcontext():
        async with open_run_cluster(loaded, tmp_path / "run") as cluster:
            assert cluster is None
    assert not left.exists()
