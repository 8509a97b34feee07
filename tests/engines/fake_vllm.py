"""A server like vLLM's, as far as its guard sees it: processes that live on without it, shared memory that nobody
removes, and a SIGTERM that waits for clients. Its first argument is the port, its second a folder for what it says of
itself. Further ones change what it does."""

from __future__ import annotations

import _multiprocessing  # type: ignore[import-not-found]
import json
import mmap
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LIVE_ON = "import time; time.sleep(300)"
ORPHAN = f"""
import subprocess, sys
command = [sys.executable, '-c', {LIVE_ON!r}]
print(subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True).pid)
"""
HOLD = "import sys, time; held = open(sys.argv[1]); time.sleep(300)"
PAUSED = threading.Event()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/slow":
            (FOLDER / "slow").touch()
            PAUSED.wait(300)
        self._say("abort" if self.path == "/slow" else "ok")

    def do_POST(self) -> None:
        if "stuck" not in HOW:
            PAUSED.set()
        (FOLDER / "paused").write_text(self.path)
        self._say("ok")

    def log_message(self, *_: object) -> None:
        pass

    def _say(self, text: str) -> None:
        self.send_response(200 if "sick" not in HOW else 503)
        self.end_headers()
        self.wfile.write(text.encode())


class Server(ThreadingHTTPServer):
    daemon_threads = False


def new_file(name: str) -> str:
    file = f"/dev/shm/{name}{secrets.token_hex(6)}"
    with open(file, "xb") as made:
        made.write(bytes(4096))
    return file


def start(code: str, *arguments: str, env: dict[str, str] | None = None, session: bool = False) -> int:
    return subprocess.Popen([sys.executable, "-c", code, *arguments], env=env, start_new_session=session).pid


def orphan(env: dict[str, str] | None = None) -> int:
    """The child of a process that has ended."""
    return int(subprocess.run([sys.executable, "-c", ORPHAN], env=env, stdout=subprocess.PIPE, check=True).stdout)


def end(server: ThreadingHTTPServer) -> None:
    threading.Thread(target=server.shutdown).start()


if __name__ == "__main__":
    FOLDER, HOW = Path(sys.argv[2]), sys.argv[3:]
    if "dies" in HOW:
        sys.exit("no memory for the KV cache")
    mapped, opened, semaphore = new_file("psm_"), new_file("sem."), f"lw-{secrets.token_hex(6)}"
    held = _multiprocessing.SemLock(1, 1, 1, f"/{semaphore}", False)
    with open(mapped, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 4096)
    server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
    processes = {
        "child": start(HOLD, opened),
        "session": start(LIVE_ON, session=True),
        "nameless": start(LIVE_ON, env={}, session=True),
        "orphan": orphan(),
        "nameless orphan": orphan(env={}),
    }
    (Path(tempfile.gettempdir()) / "socket").touch()
    files = [mapped, opened, f"/dev/shm/sem.{semaphore}"]
    said = {"server": os.getpid(), "processes": processes, "files": files, "folder": tempfile.gettempdir()}
    (FOLDER / "draft").write_text(json.dumps(said))
    (FOLDER / "draft").rename(FOLDER / "said")
    signal.signal(signal.SIGTERM, lambda *_: None if "stuck" in HOW else end(server))
    server.serve_forever()
    # Like vLLM, it ends when its clients have their answers.
    server.server_close()
    if "clean" in HOW:
        for pid in processes.values():
            os.kill(pid, signal.SIGKILL)
        for name in files:
            os.unlink(name)
