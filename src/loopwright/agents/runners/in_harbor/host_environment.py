"""An environment of Harbor on this machine itself, for machines without containers: `host_environment:HostEnvironment`.

Each environment has mounts and process numbers of its own. It sees the system's folders read-only, and none of the
user's; /app, /logs, /tests, /solution, /root and /tmp are new and empty. Nothing is built: of the task's
`environment/`, the files other than the container definitions are copied to the working directory.

This is no security boundary. The commands run as the user, reach the network, and share the kernel. They can read all
that the user may read in the system's folders.

The invariant: when the environment is stopped, or the process that made it has died, no process or mount of it is left.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from harbor.environments.base import BaseEnvironment, ExecResult, transfer_tar_filter
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities

SHOWN = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt", "var", "nix")
"""Folders of the system that can be seen, read-only."""
OWN = ("app", "logs/agent", "logs/verifier", "logs/artifacts", "tests", "solution", "root", "tmp", "run", "workspace")
DEFINITIONS = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml", ".dockerignore", "singularity-compose.yaml")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
WORKDIR = "/app"
READY = "ready"
START_SECONDS = 60.0
KILL_SECONDS = 10.0
LONGEST_OUTPUT = 10 << 20
"""Bytes of a command's output that are kept."""
MARK = "LOOPWRIGHT_TRIAL"


class HostEnvironment(BaseEnvironment):
    """`readable` are more folders that can be seen, read-only, at the same place."""

    def __init__(self, *args: Any, readable: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._readable = tuple(readable)
        self._base: Path | None = None
        self._init: asyncio.subprocess.Process | None = None
        self._inside = 0

    @staticmethod
    def type() -> str:
        return "host"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities()

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities()

    def _validate_definition(self) -> None:
        """Nothing is built."""

    async def start(self, force_build: bool) -> None:
        self._base = Path(tempfile.mkdtemp(prefix="harbor-host-", dir=self.trial_paths.trial_dir.parent))
        root = self._root
        commands = [f"mount --bind {shlex.quote(str(root))} {shlex.quote(str(root))}"]
        for name in OWN:
            (root / name).mkdir(parents=True, exist_ok=True)
        (root / "tmp").chmod(0o1777)
        for source in (*(Path("/", name) for name in SHOWN), *map(Path, self._readable)):
            commands += _shown(source, root)
        for name in ("proc", "dev", "sys"):
            (root / name).mkdir()
        place = shlex.quote(str(root))
        commands += [
            f"mount --rbind /dev {place}/dev",
            f"{{ mount -t sysfs -o ro sysfs {place}/sys || true; }} 2>/dev/null",
            f"mount -t proc proc {place}/proc",
            f"echo {READY}",
            # The first process of its namespace: it collects the exit codes of orphans.
            f"exec chroot {place} /bin/sh -c 'while :; do sleep 1000 & wait $!; done'",
        ]
        script = "set -e\n" + "\n".join(commands)
        namespaces = ["--mount", "--pid", "--fork", "--kill-child", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        with (self._base / "start.txt").open("wb") as errors:
            self._init = await asyncio.create_subprocess_exec(
                *("setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, "/bin/sh", "-c", script),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PATH": PATH},
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(START_SECONDS):
                said = await self._init.stdout.readline() if self._init.stdout else b""
        except BaseException:
            await self._end()
            raise
        if said.strip() != READY.encode():
            told = (self._base / "start.txt").read_text(errors="replace").strip()[-500:]
            await self._end()
            raise RuntimeError(f"the host environment needs root or user namespaces, and cannot be made: {told}")
        self._inside = _only_child(self._init.pid)
        workdir = self.task_env_config.workdir or WORKDIR
        await self._checked(f"mkdir -p {shlex.quote(workdir)}", cwd="/")
        if self._enable_environment_dir_upload and self.environment_dir.is_dir():
            await self._send(self.environment_dir, workdir, without=DEFINITIONS)

    async def stop(self, delete: bool) -> None:
        await self._end()
        if self._base is not None:
            await asyncio.to_thread(shutil.rmtree, self._base, ignore_errors=True)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        with open(source_path, "rb") as source:
            name = shlex.quote(target_path)
            mode = oct(Path(source_path).stat().st_mode & 0o777)[2:]
            command = f'mkdir -p "$(dirname {name})" && cat > {name} && chmod {mode} {name}'
            await self._checked(command, stdin=source, cwd="/")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._send(Path(source_dir), target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        with open(target_path, "wb") as target:
            await self._checked(f"cat {shlex.quote(source_path)}", stdout=target, cwd="/")

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        Path(target_dir).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile() as packed:
            await self._checked(f"tar -C {shlex.quote(source_dir)} -cf - .", stdout=packed, cwd="/")
            packed.seek(0)
            with tarfile.open(fileobj=packed) as archive:
                await asyncio.to_thread(archive.extractall, target_dir, filter=transfer_tar_filter)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            where = cwd or self.task_env_config.workdir or WORKDIR
            merged = self._merge_env(env) or {}
            try:
                async with asyncio.timeout(timeout_sec or None):
                    who = self._resolve_user(user)
                    code = await self._run(command, where, merged, who, stdin=None, stdout=out, stderr=errors)
            except TimeoutError as error:
                raise RuntimeError(f"Command timed out after {timeout_sec} seconds") from error
            return ExecResult(stdout=_text(out), stderr=_text(errors), return_code=code)

    @property
    def _root(self) -> Path:
        if self._base is None:
            raise RuntimeError("the environment was not started")
        return self._base / "root"

    async def _send(self, source: Path, target: str, without: Sequence[str] = ()) -> None:
        def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
            return None if member.name.removeprefix("./") in without else member

        with tempfile.TemporaryFile() as packed:
            with tarfile.open(fileobj=packed, mode="w") as archive:
                await asyncio.to_thread(archive.add, source, ".", filter=wanted)
            packed.seek(0)
            place = shlex.quote(target)
            await self._checked(f"mkdir -p {place} && tar -C {place} --no-same-owner -xf -", stdin=packed, cwd="/")

    async def _checked(
        self, command: str, *, cwd: str, stdin: IO[bytes] | None = None, stdout: IO[bytes] | None = None
    ) -> None:
        """Run a command of ours as root, and raise if it fails."""
        with tempfile.TemporaryFile() as errors:
            code = await self._run(command, cwd, {}, None, stdin=stdin, stdout=stdout, stderr=errors)
            if code:
                raise RuntimeError(f"`{command}` ended with exit code {code}: {_text(errors).strip()[-500:]}")

    async def _run(
        self,
        command: str,
        cwd: str,
        env: dict[str, str],
        user: str | int | None,
        *,
        stdin: IO[bytes] | None,
        stdout: IO[bytes] | None,
        stderr: IO[bytes],
    ) -> int:
        """Run a command inside. Its output goes to files: a pipe would stay open as long as a process in its background
        holds it."""
        if self._init is None or self._init.returncode is not None:
            raise RuntimeError("the host environment is gone")
        enter = ["--mount", "--pid", *([] if os.geteuid() == 0 else ["--user", "--preserve-credentials"])]
        as_user = [] if user in (None, "root", 0, "0") else [f"--userspec={user}"]
        home = "/root" if not as_user else "/tmp"
        given = {"PATH": PATH, "HOME": home, "LANG": "C.UTF-8", **env}
        process = await asyncio.create_subprocess_exec(
            *("nsenter", "--target", str(self._inside), *enter, "--", "chroot", *as_user, str(self._root)),
            *("/bin/sh", "-c", f"cd {shlex.quote(cwd)} && exec {_shell()} -c {shlex.quote(command)}"),
            stdin=stdin if stdin is not None else asyncio.subprocess.DEVNULL,
            stdout=stdout if stdout is not None else asyncio.subprocess.DEVNULL,
            stderr=stderr,
            env={**given, **({MARK: mark} if (mark := os.environ.get(MARK)) else {})},
            start_new_session=True,
        )
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                _kill_group(process.pid)
                await asyncio.wait_for(asyncio.shield(process.wait()), KILL_SECONDS)

    async def _end(self) -> None:
        """End all processes inside: the first one takes the others with it."""
        if self._init is not None and self._init.returncode is None:
            _kill_group(self._init.pid)
            await asyncio.wait_for(asyncio.shield(self._init.wait()), KILL_SECONDS)


def _shown(source: Path, root: Path) -> list[str]:
    """Commands that show a folder of the system. A link, such as /bin on many systems, is made again."""
    target = root / source.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
        return []
    if not source.is_dir():
        return []
    target.mkdir(exist_ok=True)
    here, there = shlex.quote(str(source)), shlex.quote(str(target))
    return [f"mount --bind {here} {there}", f"mount -o remount,bind,ro {there} {there}"]


def _only_child(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def _shell() -> str:
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(LONGEST_OUTPUT).decode("utf-8", "replace")
