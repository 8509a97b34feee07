"""The folder for weights: private, the same for every start of a run, freed at its end, and found when it died."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loopwright.errors import WeightsError
from loopwright.weights.folder import SHARED_MEMORY, left_behind, remove_held, weights_folder


def test_a_run_has_one_private_folder_in_memory_and_frees_what_a_killed_one_left(tmp_path: Path) -> None:
    memory, run = tmp_path / "shm", tmp_path / "run"
    memory.mkdir()
    run.mkdir()
    with weights_folder(run, memory) as folder:
        assert folder.parent == memory
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "left behind").write_text("x")
        shutil.copytree(folder, tmp_path / "kept")
    assert not folder.exists()
    shutil.copytree(tmp_path / "kept", folder)
    with weights_folder(run, memory) as again:
        assert again == folder
        assert list(again.iterdir()) == []
    with weights_folder(tmp_path / "other", memory) as other:
        assert other != folder


def test_without_shared_memory_the_run_folder_holds_the_weights(tmp_path: Path) -> None:
    with weights_folder(tmp_path, tmp_path / "no such folder") as folder:
        assert folder == tmp_path / "weights"


def test_a_folder_that_is_not_ours_is_not_used(tmp_path: Path) -> None:
    memory = tmp_path / "shm"
    memory.mkdir()
    with weights_folder(tmp_path, memory) as folder:
        pass
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WeightsError, match="cannot be made"), weights_folder(tmp_path, memory):
        pass
    assert (tmp_path / "elsewhere").exists()


KILLED = """
import os, pathlib, signal, sys
from loopwright.weights.folder import weights_folder

with weights_folder(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])) as folder:
    (folder / "weights-1.safetensors").write_bytes(bytes(1000))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_folder_is_found_when_its_run_was_killed_and_only_then(tmp_path: Path) -> None:
    memory = tmp_path / "shm"
    memory.mkdir()
    (memory / "somebody else's").mkdir()
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "killed", memory])
    assert killed.returncode == -signal.SIGKILL
    with weights_folder(tmp_path / "alive", memory) as alive:
        (alive / "weights-1.safetensors").write_bytes(bytes(10))
        ((left, size),) = left_behind(memory).items()
        assert (left.parent, left != alive, size) == (memory, True, 1000)
        assert left_behind(memory) == {left: size}, "looking takes nothing away"
    with weights_folder(tmp_path / "killed", memory):
        assert left_behind(memory) == {}, "its next start has freed it, and holds it"
    assert left_behind(memory) == left_behind(tmp_path / "no such folder") == {}


def test_a_process_that_ends_at_once_removes_the_folders_that_it_holds_and_no_others(tmp_path: Path) -> None:
    memory = tmp_path / "shm"
    memory.mkdir()
    with weights_folder(tmp_path / "other", memory) as other:
        left = memory / f"{other.name}0"
    left.mkdir()
    with weights_folder(tmp_path / "one", memory) as one, weights_folder(tmp_path / "two", memory):
        (one / "bucket").write_bytes(bytes(1000))
        with (memory / "mine").open("w"), (left / "bucket").open("w"):
            remove_held(memory)
            assert sorted(memory.iterdir()) == sorted([left, memory / "mine"])


STOPPED_TWICE = """
import asyncio, os, pathlib, signal, sys
from loopwright.cli.train import _stop_on_signals
from loopwright.weights.folder import weights_folder

async def main():
    _stop_on_signals()
    with weights_folder(pathlib.Path(sys.argv[1])) as folder:
        (folder / "weights-1.safetensors").write_bytes(bytes(1000))
        print(folder, flush=True)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

asyncio.run(main())
"""


@pytest.mark.skipif(not os.access(SHARED_MEMORY, os.W_OK), reason="there is no folder in shared memory")
def test_a_run_that_is_told_twice_to_stop_leaves_no_weights_in_memory(tmp_path: Path) -> None:
    stopped = subprocess.run([sys.executable, "-c", STOPPED_TWICE, tmp_path], capture_output=True, text=True)
    assert stopped.returncode == 130, stopped.stderr
    folder = Path(stopped.stdout.strip())
    assert folder.parent == SHARED_MEMORY
    assert not folder.exists()
