"""Tries torch in a child process: importing it may fail, and a product in bfloat16 may kill the process.

Some virtual machines report AMX instructions but do not allow them. oneDNN then dies of an illegal instruction
(SIGILL).
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from loopwright.doctor.facts import Bf16, Torch

SECONDS = 120.0
"""A cold import on a slow disk takes tens of seconds."""

CAPPED = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}

# The program prints what it knows before it tries something that may kill the process.
PROGRAM = """
import json, torch
gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
print(json.dumps({"version": torch.__version__, "threads": torch.get_num_threads(), "gpus": gpus}), flush=True)
a, b = torch.ones(64, 576, dtype=torch.bfloat16), torch.ones(576, 576, dtype=torch.bfloat16)
print(json.dumps({"product": (a @ b).float().mean().item()}), flush=True)
"""
PRODUCT = 576.0


@dataclass(frozen=True, slots=True)
class _Ended:
    """A finished child process: the lines that it printed, its exit code (None: it took too long), and its last
    words."""

    printed: tuple[dict[str, object], ...]
    code: int | None
    words: str


def probe_torch(env: Mapping[str, str], seconds: float = SECONDS) -> Torch:
    """Import torch and multiply in bfloat16. If that kills the process, try again with a limit on instructions."""
    ended = _run(env, seconds)
    if not ended.printed:
        reason = f"no answer within {seconds:g} s" if ended.code is None else ended.words
        return Torch(error=reason or f"exit code {ended.code}")
    found = ended.printed[0]
    gpus = found["gpus"]
    torch = Torch(
        version=str(found["version"]),
        threads=int(str(found["threads"])),
        gpus=tuple(map(str, gpus)) if isinstance(gpus, list) else (),
        bf16=_verdict(ended),
    )
    if torch.bf16 is Bf16.KILLED and _verdict(_run({**env, **CAPPED}, seconds)) is Bf16.WORKS:
        return replace(torch, bf16=Bf16.KILLED_UNLESS_CAPPED)
    return torch


def _verdict(ended: _Ended) -> Bf16:
    if ended.code == -signal.SIGILL:
        return Bf16.KILLED
    products = [line["product"] for line in ended.printed if "product" in line]
    return Bf16.WORKS if ended.code == 0 and products == [PRODUCT] else Bf16.UNKNOWN


def _run(env: Mapping[str, str], seconds: float) -> _Ended:
    command = [sys.executable, "-P", "-c", PROGRAM]
    try:
        done = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as late:
        out = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        return _Ended(_parsed(out), None, "")
    except OSError as error:
        return _Ended((), None, str(error))
    last = done.stderr.strip().splitlines()[-1:]
    return _Ended(_parsed(done.stdout), done.returncode, "".join(last))


def _parsed(out: str) -> tuple[dict[str, object], ...]:
    return tuple(json.loads(line) for line in out.splitlines() if line.startswith("{") and line.endswith("}"))
