"""The process that guards a server: whoever is killed, nothing of the server is left, and nothing else is touched."""

from __future__ import annotations

import http.client
import json
import mmap
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from loopwright.core.environment import child_environment
from loopwright.engines.vllm.guard import END_SECONDS
from loopwright.engines.vllm.leftovers import Leftovers, sweep
from loopwright.serve.child import child_process

FAKE = Path(__file__).with_name("fake_vllm.py")
SECONDS = 30.0
"""After a kill, nothing may be left when this is over."""
STRANGER = "import time; time.sleep(300)"
SUPERVISOR = (
    "import subprocess, sys, time; "
    "guard = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE); print(guard.pid, flush=True); time.sleep(300)"
)


def lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def eventually(done: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


class Guarded:
    """A guard with a fake server, in a folder."""

    def __init__(self, folder: Path, *how: str, start_seconds: float = SECONDS) -> None:
        self.state, self.log = folder / "state", folder / "log"
        self.folder = folder
        fake = [sys.executable, str(FAKE), "{port}", str(folder), *how]
        guard = [sys.executable, "-m", "loopwright.engines.vllm.guard"]
        options = ["--state", str(self.state), "--log", str(self.log), "--start-seconds", str(start_seconds)]
        self.command = [*guard, *options, "--", *fake]

    def start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(self.command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True)

    @property
    def said(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads((self.folder / "said").read_text())
        return said

    @property
    def pids(self) -> list[int]:
        return [self.said["server"], *self.said["processes"].values()]

    def gone(self) -> bool:
        return not any(map(lives, self.pids)) and not any(
            map(os.path.exists, [*self.said["files"], self.said["folder"]])
        )

    def cleared(self) -> None:
        eventually(self.gone, f"left: {[pid for pid in self.pids if lives(pid)]}, {self.said}")
        eventually(lambda: not self.state.exists(), "the state file is left")


def line(pipe: Any, seconds: float = SECONDS) -> str:
    assert select.select([pipe], [], [], seconds)[0], "it said nothing"
    said: str = pipe.readline()
    return said


def ready(guard: subprocess.Popen[str]) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(line(guard.stdout))
    return said


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    made = Guarded(tmp_path)
    yield made
    if (tmp_path / "said").exists():
        for pid in filter(lives, made.pids):
            os.kill(pid, signal.SIGKILL)
        for file in made.said["files"]:
            Path(file).unlink(missing_ok=True)


def test_it_says_the_port_when_the_server_is_healthy(guarded: Guarded) -> None:
    guard = guarded.start()
    said = ready(guard)
    assert said == {"port": said["port"], "pid": guarded.said["server"]}
    assert guarded.said["folder"] == json.loads(guarded.state.read_text())["folder"]
    connection = http.client.HTTPConnection("127.0.0.1", said["port"], timeout=SECONDS)
    connection.request("GET", "/health")
    assert connection.getresponse().status == http.client.OK
    connection.close()
    words = guard.communicate(timeout=SECONDS)[1]
    assert guard.returncode == 0
    assert "the server ended with exit code 0, because its supervisor is gone; 5 of its processes were killed" in words
    assert (guarded.folder / "paused").read_text() == "/pause?mode=abort"
    guarded.cleared()


def test_a_killed_supervisor_leaves_nothing(guarded: Guarded) -> None:
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, *guarded.command], stdout=subprocess.PIPE, text=True
    )
    guard = int(line(supervisor.stdout))
    line(supervisor.stdout)
    supervisor.kill()
    supervisor.communicate()
    guarded.cleared()
    eventually(lambda: not lives(guard), "the guard is left")


def test_a_killed_first_process_leaves_nothing(guarded: Guarded) -> None:
    guard = guarded.start()
    os.kill(ready(guard)["pid"], signal.SIGKILL)
    assert guard.wait(SECONDS) == 1
    guarded.cleared()
    assert "the server was killed by SIGKILL; 5 of its processes were killed" in guard.communicate()[1]


def test_sigterm_with_a_request_in_flight(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, "clean")
    guard = guarded.start()
    connection = http.client.HTTPConnection("127.0.0.1", ready(guard)["port"], timeout=SECONDS)
    with ThreadPoolExecutor(1) as pool:
        connection.request("GET", "/slow")
        answer = pool.submit(lambda: connection.getresponse().read())
        eventually((tmp_path / "slow").exists, "the request did not arrive")
        guard.terminate()
        assert answer.result(SECONDS) == b"abort"
    connection.close()
    assert guard.wait(SECONDS) == 0
    guarded.cleared()
    words = guard.communicate()[1].strip()
    assert words == "the server ended with exit code 0, because the guard was asked to end"


def test_a_killed_guard_is_swept_up_after(guarded: Guarded, tmp_path: Path) -> None:
    guard = guarded.start()
    ready(guard)
    assert len(json.loads(guarded.state.read_text())["files"]) == 3
    guard.kill()
    guard.communicate()
    assert all(map(lives, guarded.pids))
    assert sweep(guarded.state) == 6
    assert guarded.gone()
    assert not guarded.state.exists()
    assert sweep(guarded.state) == 0


def test_the_next_guard_sweeps_up_too(guarded: Guarded) -> None:
    first = guarded.start()
    ready(first)
    first.kill()
    first.communicate()
    before = guarded.pids
    second = guarded.start()
    ready(second)
    assert not any(map(lives, before))
    second.communicate(timeout=SECONDS)
    guarded.cleared()


def test_a_guard_that_lives_is_asked_to_end_first(guarded: Guarded) -> None:
    guard = guarded.start()
    ready(guard)
    assert sweep(guarded.state) == 0
    assert guarded.gone()
    guard.communicate(timeout=SECONDS)
    assert guard.returncode == 0


def test_a_state_file_that_cannot_be_written_changes_nothing(guarded: Guarded, tmp_path: Path) -> None:
    guarded.state = tmp_path / "folder" / "state"
    guarded.state.parent.mkdir()
    guarded.command[guarded.command.index("--state") + 1] = str(guarded.state)
    guard = guarded.start()
    ready(guard)
    shutil.rmtree(guarded.state.parent)
    os.kill(guarded.said["processes"]["orphan"], signal.SIGKILL)
    guard.communicate(timeout=SECONDS)
    assert guard.returncode == 0
    guarded.cleared()


def test_a_server_that_dies_at_its_start(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, "dies")
    guard = guarded.start()
    assert guard.wait(SECONDS) == 1
    out, words = guard.communicate()
    assert out == ""
    assert "no memory for the KV cache" in words
    assert words.strip().endswith("the server ended with exit code 1")
    assert not guarded.state.exists()


def test_a_server_that_never_becomes_healthy(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, "sick", start_seconds=1.5)
    guard = guarded.start()
    assert guard.wait(SECONDS) == 1
    out, words = guard.communicate()
    assert out == ""
    assert "because it did not become healthy in time" in words
    guarded.cleared()


def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path)
    guarded.command[-3] = "{port}"
    guarded.command[guarded.command.index("--") + 1] = "no-such-vllm"
    guard = guarded.start()
    words = guard.communicate(timeout=SECONDS)[1]
    assert guard.returncode == 1
    assert "the server cannot be started" in words
    assert "no-such-vllm" in words


@pytest.mark.real
def test_a_server_that_ignores_everything_is_killed(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, "stuck")
    guard = guarded.start()
    ready(guard)
    begun = time.monotonic()
    guard.terminate()
    words = guard.communicate(timeout=SECONDS)[1]
    assert time.monotonic() - begun < END_SECONDS
    assert "the server was killed by SIGKILL, because the guard was asked to end; 6 of its" in words
    guarded.cleared()


async def test_it_is_a_child_like_any_other(guarded: Guarded, tmp_path: Path) -> None:
    """A supervisor starts it with `child_process`."""
    log = tmp_path / "guard.log"
    env = child_environment(dict(os.environ))
    async with child_process(
        guarded.command, env=env, log=log, ready_seconds=SECONDS, grace_seconds=END_SECONDS
    ) as child:
        assert child.ready["pid"] == guarded.said["server"]
        os.kill(child.ready["pid"], signal.SIGKILL)
        assert "the server was killed by SIGKILL" in await child.wait()
    guarded.cleared()


def test_what_is_not_the_servers_stays(guarded: Guarded, tmp_path: Path) -> None:
    """Another server's process and file; and a file of this server that somebody else has mapped."""
    mine = Path(f"/dev/shm/psm_{os.getpid()}_other")
    mine.write_bytes(bytes(4096))
    other = subprocess.Popen([sys.executable, "-c", STRANGER], env={**os.environ, "LOOPWRIGHT_ENGINE": "another"})
    guard = guarded.start()
    try:
        ready(guard)
        shared = guarded.said["files"][0]
        with open(shared, "r+b") as file, mmap.mmap(file.fileno(), 4096):
            guard.communicate(timeout=SECONDS)
            assert os.path.exists(shared)
            assert not any(map(os.path.exists, guarded.said["files"][1:]))
        assert mine.exists()
        assert other.poll() is None
    finally:
        mine.unlink()
        other.kill()
        other.wait()


def test_numbers_and_names_that_were_used_again_are_not_the_servers(tmp_path: Path) -> None:
    state, file = tmp_path / "state", Path(f"/dev/shm/psm_{os.getpid()}_again")
    file.write_bytes(b"somebody else's")
    other = subprocess.Popen([sys.executable, "-c", STRANGER])
    try:
        Leftovers.of_new_server(state)
        said = json.loads(state.read_text())
        inode = os.stat(file).st_ino
        said["guard"] = [other.pid, "1"]
        said["processes"] = [[other.pid, "1"]]
        said["files"] = [[str(file), os.stat(file).st_dev, inode + 1]]
        state.write_text(json.dumps(said))
        assert sweep(state) == 0
        assert other.poll() is None
        assert file.exists()
        said["files"] = [[str(file), os.stat(file).st_dev, inode]]
        state.write_text(json.dumps(said | {"boot": "another"}))
        assert sweep(state) == 0
        assert file.exists()
        assert not state.exists()
    finally:
        file.unlink()
        other.kill()
        other.wait()


def test_two_guards_never_share_a_port() -> None:
    from loopwright.engines.vllm.guard import _reserved_port

    reserved = [_reserved_port() for _ in range(200)]
    assert len({one.getsockname()[1] for one in reserved}) == len(reserved)
    for one in reserved:
        one.close()


def test_it_imports_little() -> None:
    code = (
        "import sys, loopwright.engines.vllm.guard; "
        "print([one for one in ('torch', 'transformers', 'httpx', 'pydantic') if one in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
