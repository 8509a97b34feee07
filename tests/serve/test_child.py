"""Programs that we start: ready when they say so, gone when we are, and heard to their last words."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from loopwright.core.environment import child_environment, computing_environment
from loopwright.engines.http.process import KEY_VARIABLE, engine_process
from loopwright.errors import EngineLostError
from loopwright.serve.child import Child, child_process

READY = "import json, sys, time; print(json.dumps({'port': 7})); sys.stdout.flush(); "
WAIT = "time.sleep(60)"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def gone(pid: int) -> None:
    async with asyncio.timeout(10):
        while alive(pid):
            await asyncio.sleep(0.01)


async def test_it_is_ready_when_it_says_so_and_gone_when_we_leave(tmp_path: Path) -> None:
    async with child_process(
        python("print('hello');" + READY + WAIT), env={}, log=tmp_path / "log", ready_seconds=20
    ) as child:
        assert child.ready == {"port": 7}
        assert alive(child.pid)
    assert not alive(child.pid)


async def test_one_that_does_not_want_to_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.serve.child.GRACE_SECONDS", 0.1)
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY + WAIT
    async with child_process(python(stubborn), env={}, log=tmp_path / "log", ready_seconds=20) as child:
        pass
    assert not alive(child.pid)


async def cancelled_while_it_ends(opening: AbstractAsyncContextManager[Child]) -> None:
    closing = asyncio.create_task(opening.__aexit__(None, None, None))
    await asyncio.sleep(0.1)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(closing, 10)


async def test_one_that_does_not_want_to_end_is_killed_when_its_owner_is_cancelled(tmp_path: Path) -> None:
    """Nobody waits for it any more, so it would outlive us."""
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY + WAIT
    opening = child_process(python(stubborn), env={}, log=tmp_path / "log", ready_seconds=20, grace_seconds=50)
    child = await opening.__aenter__()
    await cancelled_while_it_ends(opening)
    with pytest.raises(ProcessLookupError):
        # A process that was killed and not waited for would still be there.
        os.kill(child.pid, 0)


async def test_one_that_cleans_up_may_go_on_when_its_owner_is_cancelled(tmp_path: Path) -> None:
    """A guard ends its server, which nobody else would end."""
    done = tmp_path / "done"
    handler = f"lambda *_: (time.sleep(1), open({str(done)!r}, 'w').close(), sys.exit())"
    cleaning = "import signal, time, sys; signal.signal(signal.SIGTERM, " + handler + "); " + READY + WAIT
    opening = child_process(python(cleaning), env={}, log=tmp_path / "log", ready_seconds=20, cleans_up=True)
    child = await opening.__aenter__()
    await cancelled_while_it_ends(opening)
    assert not done.exists()
    await asyncio.wait_for(child.wait(), 20)
    assert done.exists()


async def test_its_death_is_told_with_its_last_words_and_not_those_of_another(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("an earlier life\n")
    code = READY + "print('out of memory', file=sys.stderr); sys.exit(3)"
    async with child_process(python(code), env={}, log=log, ready_seconds=20) as child:
        words = await child.wait()
    assert "exit code 3" in words
    assert "out of memory" in words
    assert "earlier" not in words
    async with child_process(python(READY + WAIT), env={}, log=log, ready_seconds=20) as child:
        os.kill(child.pid, signal.SIGKILL)
        assert "killed by SIGKILL" in await child.wait()


async def test_one_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineLostError, match="no such model"):
        async with child_process(
            python("raise SystemExit('no such model')"), env={}, log=tmp_path / "log", ready_seconds=20
        ):
            pass
    with pytest.raises(EngineLostError, match=r"not ready within 0\.2 s"):
        async with child_process(python("import time;" + WAIT), env={}, log=tmp_path / "log", ready_seconds=0.2):
            pass


def test_a_child_sees_where_things_are_but_no_keys() -> None:
    env = {
        "PATH": "/bin",
        "HOME": "/root",
        "OMP_NUM_THREADS": "1",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16",
        "NCCL_SOCKET_IFNAME": "eth0",
        "HF_HOME": "/cache",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "HSA_OVERRIDE_GFX_VERSION": "10.3.0",
        "TRITON_API_KEY": "secret",
        "HF_TOKEN": "secret",
        "OPENAI_API_KEY": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "SOMETHING": "else",
    }
    passed = child_environment(env)
    computing = ("OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "NCCL_SOCKET_IFNAME", "TOKENIZERS_PARALLELISM")
    assert passed == {k: env[k] for k in ("PATH", "HOME", "HF_HOME", *computing)}
    of_ours = {k: env[k] for k in ("PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG", "HSA_OVERRIDE_GFX_VERSION")}
    assert computing_environment(env) == passed | of_ours


async def test_an_engine_sees_its_own_key_and_no_other(tmp_path: Path) -> None:
    env = dict.fromkeys(["PATH", "OPENAI_API_KEY", "DATABASE_URL", "PYTORCH_ALLOC_CONF"], "x")
    names = python("import os; raise SystemExit(f'it sees {sorted(os.environ)}')")
    with pytest.raises(EngineLostError, match="it sees") as caught:
        async with engine_process(names, env=env, log=tmp_path / "log"):
            pass
    assert KEY_VARIABLE in caught.value.message
    assert "PATH" in caught.value.message
    assert "PYTORCH_ALLOC_CONF" in caught.value.message
    assert not any(name in caught.value.message for name in ("OPENAI_API_KEY", "DATABASE_URL"))


CHILD = "from loopwright.serve.parent import die_with_parent; die_with_parent(); " + READY + WAIT

PARENT = """
import asyncio, pathlib, sys
from loopwright.serve.child import child_process
async def main():
    command = [sys.executable, "-c", sys.argv[1]]
    env = {"PYTHONPATH": sys.argv[3]}
    async with child_process(command, env=env, log=pathlib.Path(sys.argv[2]), ready_seconds=30) as child:
        print(child.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("kernel", [True, False], ids=["killed by the kernel", "by the pipe alone"])
async def test_a_child_dies_with_a_parent_that_was_killed(tmp_path: Path, kernel: bool) -> None:
    child = CHILD if kernel else "import sys; sys.platform = 'elsewhere'; " + CHILD
    parent = await asyncio.create_subprocess_exec(
        *python(PARENT), child, str(tmp_path / "log"), os.pathsep.join(sys.path), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert alive(pid)
    started = time.monotonic()
    parent.kill()
    await parent.wait()
    await gone(pid)
    assert time.monotonic() - started < 5
