"""Starts a server, and sees to it that nothing of it is left when it ends, however that happens.

    python -m loopwright.engines.vllm.guard --state FILE --log FILE -- vllm serve … --port {port}

The guard picks the port, waits until the server is healthy, and then prints `{"port": …, "pid": …}`. Its standard input
is a pipe from its supervisor. When the pipe ends, on SIGTERM, or when the server's first process dies, it ends every
process of the server and removes its files (`leftovers.py`). That takes END_SECONDS at most. Its last line on
standard error says how the server ended.

The guard is small, imports no torch, and outlives its supervisor: it is what cleans up if that one is killed.
"""

from __future__ import annotations

import argparse
import ctypes
import getpass
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from loopwright.engines.vllm.leftovers import VARIABLE, Leftovers, sweep

PORT = "{port}"
LOOPBACK = "127.0.0.1"
START_SECONDS = 600.0
START_LOOK_SECONDS = 0.25
LOOK_SECONDS = 2.0
END_LOOK_SECONDS = 0.1
HEALTH_SECONDS = 2.0
PAUSE_SECONDS = 2.0
GRACE_SECONDS = 5.0
"""From SIGTERM to SIGKILL. A server that answers nothing any more ends within two seconds."""
REST_SECONDS = 1.0
"""What the server's first process has not ended within this, after its own end, it has forgotten."""
END_SECONDS = 20.0
"""After SIGTERM, whoever waits for a guard must give it so long."""
LAST_WORDS_BYTES = 1500
PR_SET_CHILD_SUBREAPER = 36


class Reason(StrEnum):
    """Why the server must end."""

    ASKED = "the guard was asked to end"
    ORPHANED = "its supervisor is gone"
    DIED = "its first process has ended"
    LATE = "it did not become healthy in time"


class Supervisor:
    """What comes from outside: the end of the pipe, and signals. It must exist before the server does, or an early
    SIGTERM ends the guard alone."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._asked = False
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def wait(self, seconds: float) -> Reason | None:
        """Wait for so long, or until something has happened. Returns why the server must end now, if it must."""
        readable, *_ = select.select([self._pipe, self._woken], [], [], seconds)
        self._drain(readable)
        if self._asked:
            return Reason.ASKED
        return Reason.ORPHANED if self._pipe in readable and not os.read(self._pipe, 1 << 12) else None

    def sleep(self, seconds: float) -> None:
        """Until then, or until a child has ended. Nobody is heard any more."""
        readable, *_ = select.select([self._woken], [], [], seconds)
        self._drain(readable)

    def _drain(self, readable: Sequence[int]) -> None:
        if self._woken in readable:
            os.read(self._woken, 1 << 12)

    def _ask(self, *_: object) -> None:
        self._asked = True


class ServerGuard:
    """A running server. `supervise` returns when it and all that it has started are gone."""

    def __init__(
        self, server: subprocess.Popen[bytes], host: str, port: int, left: Leftovers, supervisor: Supervisor
    ) -> None:
        self._server = server
        self._host = host
        self._port = port
        self._left = left
        self._supervisor = supervisor

    def supervise(self, start_seconds: float) -> tuple[int, str]:
        """The guard's exit code, and how the server ended."""
        why = self._until_it_must_end(start_seconds)
        killed = self._end(why)
        how = _how(self._server.wait(GRACE_SECONDS))
        rest = f"; {killed} of its processes were killed" if killed else ""
        code = 0 if why in (Reason.ASKED, Reason.ORPHANED) else 1
        return code, f"the server {how}, because {why}{rest}" if why is not Reason.DIED else f"the server {how}{rest}"

    def _until_it_must_end(self, start_seconds: float) -> Reason:
        deadline, ready = time.monotonic() + start_seconds, False
        while True:
            self._left.look()
            if self._has_ended():
                return Reason.DIED
            if not ready and self._call("GET", "/health", HEALTH_SECONDS):
                ready = True
                # What lives when the supervisor hears of it is in the state file.
                self._left.look()
                with suppress(BrokenPipeError):
                    print(json.dumps({"port": self._port, "pid": self._server.pid}), flush=True)
            elif not ready and time.monotonic() > deadline:
                return Reason.LATE
            if (why := self._supervisor.wait(LOOK_SECONDS if ready else START_LOOK_SECONDS)) is not None:
                return why

    def _has_ended(self) -> bool:
        """Whether the server's first process has ended. It stays a zombie until everything is over, so that its number,
        and that of its group, cannot become somebody else's."""
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (child := os.waitid(os.P_ALL, 0, how)) is not None:
            if child.si_pid == self._server.pid:
                return True
            os.waitpid(child.si_pid, 0)
        return False

    def _end(self, why: Reason) -> int:
        """End all of it. Returns how many processes had to be killed."""
        if why is not Reason.DIED:
            # With requests in flight, vLLM would wait for its clients.
            self._call("POST", "/pause?mode=abort", PAUSE_SECONDS)
            os.kill(self._server.pid, signal.SIGTERM)
            deadline = time.monotonic() + GRACE_SECONDS
            ended = False
            while self._left.look() and time.monotonic() < deadline:
                self._supervisor.sleep(END_LOOK_SECONDS)
                if self._has_ended() and not ended:
                    ended, deadline = True, min(deadline, time.monotonic() + REST_SECONDS)
        living = len(self._left.look())
        with suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)
        return max(living, self._left.end())

    def _call(self, method: str, path: str, seconds: float) -> bool:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        try:
            connection.request(method, path)
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    if options.apart and (code := _ended_child()) is not None:
        return code
    sweep(options.state)
    _adopt_orphans()
    with _reserved_port(options.host) as reserved, options.log.open("ab") as log:
        port, begin = reserved.getsockname()[1], log.tell()
        left, supervisor = Leftovers.of_new_server(options.state), Supervisor(sys.stdin.fileno())
        try:
            server = subprocess.Popen(
                [part.replace(PORT, str(port)) for part in options.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(left),
                start_new_session=True,
            )
        except OSError as error:
            left.end()
            print(f"the server cannot be started: {error}", file=sys.stderr)
            return 1
        try:
            code, how = ServerGuard(server, options.host, port, left, supervisor).supervise(options.start_seconds)
        except BaseException:
            left.end()
            raise
        if code and (words := _last_words(log.fileno(), options.log, begin)):
            print(f"the server's last words:\n{words}", file=sys.stderr)
        print(how, file=sys.stderr)
        return code


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m loopwright.engines.vllm.guard", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="where the server's processes and files are kept")
    parser.add_argument("--log", type=Path, required=True, help="where the server's output goes")
    parser.add_argument("--apart", action="store_true", help="be no child of the supervisor, which may be killed")
    parser.add_argument("--host", default=LOOPBACK, help="where COMMAND listens")
    parser.add_argument("--start-seconds", type=float, default=START_SECONDS, help="until it must be healthy")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help=f"{PORT} in it becomes the port")
    options = parser.parse_args(arguments)
    if not any(PORT in part for part in options.command):
        parser.error(f"COMMAND has no {PORT}")
    return options


def _ended_child() -> int | None:
    """Let a child be the guard, and wait for it. Gives its exit code, and None in the child. Whoever kills the children
    of the supervisor, as Ray does with those of an actor, then kills this process, and the guard does its work."""
    ends = (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    child = os.fork()
    if child:
        for number in ends:
            signal.signal(number, lambda *_: os.kill(child, signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
    return abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) if child else None


def _environment(left: Leftovers) -> dict[str, str]:
    """The guard's own, with the mark and a folder for temporary files. What torch has compiled stays where it was, or
    every start would compile it again."""
    compiled = os.path.join(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    return {"TORCHINDUCTOR_CACHE_DIR": compiled, **os.environ, "TMPDIR": str(left.folder), VARIABLE: left.mark}


def _adopt_orphans() -> None:
    """A process whose parent ends becomes a child of the guard, instead of one of the system's."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _reserved_port(host: str = LOOPBACK) -> socket.socket:
    """A socket on a free port of this machine. While it is open nobody gets the port by chance; the server, which sets
    SO_REUSEADDR as servers do, can listen on it. vLLM would also share a port with another vLLM, and say nothing."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reserved.bind((host, 0))
    return reserved


def _how(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _last_words(log: int, path: Path, begin: int) -> str:
    """The end of what the server wrote, unless it is in the same file as the guard's own words."""
    if os.path.sameopenfile(log, sys.stderr.fileno()):
        return ""
    with path.open("rb") as opened:
        opened.seek(max(begin, os.fstat(opened.fileno()).st_size - LAST_WORDS_BYTES))
        return opened.read().decode(errors="replace").strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
