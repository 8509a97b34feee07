"""The C source, compiled for the processor that it runs on.

The user's compiler compiles it at its first use, which takes a second. The result is kept beside Python's bytecode. It
is not shipped as a binary, because a binary that runs everywhere cannot use the fast instructions of this processor.
Without a compiler, torch computes instead.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("decode.c")
BESIDE_BYTECODE = SOURCE.parent / "__pycache__"
COMPILERS = ("gcc", "cc")
"""gcc comes first, because it has the same OpenMP as torch. Threads of two OpenMP libraries would wait for one
another."""
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fopenmp", "-fno-math-errno", "-fPIC", "-shared")
COMPILE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The reason why there is no library."""

    reason: str


@dataclass(frozen=True, slots=True)
class Library:
    """The functions of decode.c, and the sizes that it was compiled with."""

    functions: ctypes.CDLL
    panel: int
    lanes: int


@cache
def library(folder: Path | None = None, flags: tuple[str, ...] = FLAGS) -> Library | Unavailable:
    """The compiled library. It is kept in `folder` if the package's own folder cannot be written to."""
    problems: list[str] = []
    try:
        name = f"decode-{_fingerprint(flags)}.so"
    except OSError as error:
        return Unavailable(str(error))
    for place in (BESIDE_BYTECODE, *([folder] if folder else [])):
        with suppress(OSError):
            return _load(place / name)
        try:
            _compile(flags, place / name)
            return _load(place / name)
        except (OSError, subprocess.SubprocessError) as error:
            problems.append(_told(error))
    return Unavailable("; ".join(dict.fromkeys(problems)))


def _fingerprint(flags: Sequence[str]) -> str:
    """A hash of all that the result depends on, except for the compiler: if the compiler is removed, a run continues
    with the same library. The processor is part of it, because a folder may be used on another machine later."""
    made_of = [SOURCE.read_text(encoding="utf-8"), *flags, platform.system(), *_processor()]
    return hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]


def _processor() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return [platform.machine(), platform.processor()]
    return sorted({line for line in lines if line.startswith(("model name", "flags", "CPU part", "Features"))})


def _compile(flags: Sequence[str], target: Path) -> None:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError(f"no C compiler ({' or '.join(COMPILERS)}) was found")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Compiled under another name and renamed, so that nobody loads half a file if another process compiles or dies.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".decode-") as temporary:
        made = Path(temporary) / target.name
        subprocess.run(
            [compiler, *flags, str(SOURCE), "-o", str(made)],
            check=True,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=COMPILE_SECONDS,
            env={"PATH": f"{Path(compiler).parent}{os.pathsep}{os.defpath}", "TMPDIR": temporary, "LC_ALL": "C"},
        )
        made.chmod(0o755)
        made.replace(target)


def _load(path: Path) -> Library:
    found = path.stat()
    if found.st_uid not in (0, os.getuid()) or found.st_mode & 0o022:
        raise PermissionError(f"{path} is somebody else's, or others may write to it")
    functions = ctypes.CDLL(str(path))
    for name in ("loopwright_panel", "loopwright_lanes"):
        getattr(functions, name).restype = ctypes.c_int64
    return Library(functions, panel=functions.loopwright_panel(), lanes=functions.loopwright_lanes())


def _told(error: OSError | subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        said = (error.stderr or "").strip().splitlines()
        errors = [line for line in said if "error" in line] or said
        return f"the C compiler failed: {errors[0] if errors else error}"
    return str(error)
