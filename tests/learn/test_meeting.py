"""What a rank tells NCCL, and whose fault it takes NCCL's errors for. There is no GPU here."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from loopwright.build.hosted_rank import bound_to
from loopwright.build.ranks import _started
from loopwright.errors import LearnerError, RemoteError
from loopwright.learn.ranks import meeting as meeting_module
from loopwright.learn.ranks.meeting import is_of_others, meeting, own_fault
from loopwright.learn.ranks.messages import RankFailed, RankPlace
from loopwright.learn.ranks.serving import DriverPipe, _told
from loopwright.serve.frames import read_frame

HEAD = "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:94, {}, NCCL version 2.27.3\n"
DUPLICATE = (
    HEAD.format("invalid usage (run with NCCL_DEBUG=WARN for details)")
    + "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
    + "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000"
)
NO_MEMORY = (
    HEAD.format("unhandled cuda error (run with NCCL_DEBUG=INFO for details)")
    + "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"
)
FULL_DISK = (
    HEAD.format("unhandled system error (run with NCCL_DEBUG=INFO for details)")
    + "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
    + "Last error:\nError while creating shared memory segment /dev/shm/nccl-abc (size 9637888): No space left"
)
GONE = (
    HEAD.format("remote process exited or there was a network error")
    + "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
    + "Last error:\nsocketProgress: Connection closed by remote peer host<40000>"
)
REFUSED = (
    HEAD.format("unhandled system error (run with NCCL_DEBUG=INFO for details)")
    + "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
    + "Last error:\nsocketPollConnect: Connect to 10.0.0.5<40000> failed : Software caused connection abort"
)
NO_STORE = "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0], but got error: Broken pipe"
PLACE = RankPlace(1, 2, Path(), 5.0, None)


@pytest.mark.parametrize(("text", "mine"), [(DUPLICATE, True), (NO_MEMORY, True), (GONE, False), (NO_STORE, False)])
def test_what_nccl_says_of_this_rank_is_no_lost_peer(text: str, mine: bool) -> None:
    assert is_of_others(dist.DistBackendError(text)) is not mine


def test_an_error_of_cuda_is_the_rank_s_own_only_before_others_share_its_memory() -> None:
    """Later, the end of a peer may break what is mapped of it."""
    error = dist.DistBackendError(HEAD.format("unhandled cuda error") + "ncclUnhandledCudaError: Call to CUDA failed.")
    assert is_of_others(error)
    assert own_fault(error, opening=True) is not None


def test_a_lost_store_and_gloo_are_of_others() -> None:
    assert is_of_others(dist.DistNetworkError("out of memory"))
    assert is_of_others(RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"))
    assert not is_of_others(RuntimeError("out of memory"))


@pytest.mark.parametrize(
    ("text", "error", "remedy"),
    [
        (DUPLICATE, LearnerError, "learner.num_gpus_per_rank to 1"),
        (NO_MEMORY, LearnerError, "nvidia-smi"),
        (FULL_DISK, LearnerError, "/dev/shm"),
        (GONE, dist.DistBackendError, None),
        (REFUSED, dist.DistBackendError, None),
    ],
)
def test_what_keeps_nccl_from_connecting_is_told_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, text: str, error: type[Exception], remedy: str | None
) -> None:
    asked: dict[str, Any] = {}

    def connect(backend: str, **options: Any) -> None:
        asked.update(options, backend=backend)
        raise dist.DistBackendError(text)

    monkeypatch.setattr(meeting_module, "_store", lambda place, timeout: None)
    monkeypatch.setattr(dist, "init_process_group", connect)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    with pytest.raises(error) as caught, meeting(PLACE, torch.device("cuda:1")):
        pass
    assert (asked["backend"], asked["device_id"]) == ("nccl", torch.device("cuda:1"))
    if remedy is not None:
        assert isinstance(caught.value, LearnerError)
        assert remedy in caught.value.remedy
        assert text.splitlines()[-1] in caught.value.message


@pytest.mark.parametrize(("text", "told"), [(DUPLICATE, LearnerError), (FULL_DISK, None), (GONE, None)])
def test_the_driver_hears_whose_fault_it_was(text: str, told: type | None) -> None:
    answers = io.BytesIO()
    with pytest.raises(dist.DistBackendError), _told(DriverPipe(io.BytesIO(), answers), PLACE):
        raise dist.DistBackendError(text)
    answers.seek(0)
    failed = read_frame(answers)
    assert isinstance(failed, RankFailed)
    assert type(failed.error) is (told or type(None))
    assert not isinstance(failed.error, RemoteError)


async def test_nccl_takes_the_interface_of_gloo_unless_it_is_told_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert bound_to("eth0", {}) == {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0"}
    assert bound_to("eth0", {"NCCL_SOCKET_IFNAME": "ib0"})["NCCL_SOCKET_IFNAME"] == "ib0"

    class StopHereError(Exception):
        pass

    def child(command: list[str], *, env: dict[str, str], **options: Any) -> None:
        raise StopHereError(env)

    monkeypatch.setattr("loopwright.build.ranks.child_process", child)
    for given, seen in (({}, "=lo"), ({"NCCL_SOCKET_IFNAME": "ib0"}, "ib0")):
        nobody: Any = None
        with pytest.raises(StopHereError) as caught:
            await _started(0, tmp_path / "log", given | {"PYTORCH_ALLOC_CONF": "x"}, nobody)
        assert caught.value.args[0] == {
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": seen,
            "PYTORCH_ALLOC_CONF": "x",
        }
