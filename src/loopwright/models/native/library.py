"""The C source, compiled for the very processor that it runs on.

Compiled by the user's compiler at its first use, which takes a second, and kept beside Python's bytecode. Not shipped
as a binary: one that runs everywhere would not use what makes it fast here. Who has no compiler computes by torch.
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
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("decode.c")
BESIDE_BYTECODE = SOURCE.parent / "__pycache__"
COMPILERS = ("gcc", "cc")
"""gcc first: its OpenMP is torch's, and threads of two kinds would wait for one another."""
FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fopenmp", "-fno-math-errno", "-fPIC", "-shared")
COMPILE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why there is none."""

    reason: str


@dataclass(frozen=True, slots=True)
class Library:
    """The functions of decode.c, and the sizes that it was compiled with."""

    functions: ctypes.CDLL
    panel: int
    lanes: int


@cache
def library(folder: Path | None = None, flags: tuple[str, ...] = FLAGS) -> Library | Unavailable:
    """The compiled source; `folder` keeps it if the package's own folder cannot."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        return Unavailable(f"no C compiler ({' or '.join(COMPILERS)}) was found")
    name = f"decode-{_fingerprint(compiler, flags)}.so"
    places = [BESIDE_BYTECODE, *([folder] if folder else [])]
    problems: list[str] = []
    for place in places:
        try:
            if not (place / name).exists():
                _compile([compiler, *flags], place / name)
            return _load(place / name)
        except (OSError, subprocess.SubprocessError) as error:
            problems.append(_told(error))
    return Unavailable("; ".join(dict.fromkeys(problems)))


def _fingerprint(compiler: str, flags: Sequence[str]) -> str:
    """Of all that the result depends on. A folder may outlive the machine that compiled into it."""
    made_of = [SOURCE.read_text(encoding="utf-8"), *flags, os.path.realpath(compiler), *_processor()]
    return hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:16]


def _processor() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return [platform.machine(), platform.processor()]
    return sorted({line for line in lines if line.startswith(("model name", "flags", "CPU part", "Features"))})


def _compile(compiler: Sequence[str], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Made aside and renamed: nobody ever loads half of it, whoever else compiles or dies meanwhile.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".decode-") as temporary:
        made = Path(temporary) / target.name
        command = [*compiler, str(SOURCE), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_SECONDS)
        made.replace(target)


def _load(path: Path) -> Library:
    functions = ctypes.CDLL(str(path))
    for name in ("loopwright_panel", "loopwright_lanes"):
        getattr(functions, name).restype = ctypes.c_int64
    return Library(functions, panel=functions.loopwright_panel(), lanes=functions.loopwright_lanes())


def _told(error: OSError | subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        said = (error.stderr or "").strip().splitlines()
        return f"the C compiler failed: {said[0] if said else error}"
    return str(error)
