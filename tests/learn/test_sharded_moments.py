"""The optimiser's numbers in torch's format for checkpoints of ranks, written here by a group of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from traceback import StackSummary

import pytest
import torch
from torch import distributed
from torch.distributed.checkpoint.api import CheckpointException

from loopwright.errors import CheckpointError
from loopwright.learn import sharded_moments
from loopwright.learn.ranks.meeting import meeting
from loopwright.learn.ranks.messages import RankPlace
from loopwright.learn.sharded_moments import MOMENTS, read_moments, write_moments

WEIGHTS = {f"layer.{number}.weight": torch.empty(40 + number, 8) for number in range(5)}


@pytest.fixture
def group_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with meeting(RankPlace(0, 1, tmp_path, 10, None), torch.device("cpu")):
        yield
    assert not distributed.is_initialized()


@pytest.fixture
def moments() -> dict[str, torch.Tensor]:
    return {f"{name}/{moment}": torch.rand_like(weight) for name, weight in WEIGHTS.items() for moment in MOMENTS}


@pytest.mark.parametrize(("size", "files"), [(2**28, 1), (4000, 4), (1, 10)])
def test_moments_come_back_from_any_number_of_files(
    group_of_one: None, moments: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    size: int, files: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(sharded_moments, "FILE_BYTES", size)
    write_moments(tmp_path / "saved", moments, beat=lambda: None)
    assert len(list((tmp_path / "saved").glob("*.safetensors"))) == files
    found = read_moments(tmp_path / "saved", WEIGHTS, alone=True)
    assert found.keys() == moments.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in moments.items())


def test_moments_of_other_weights_are_refused(
    group_of_one: None, moments: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    write_moments(tmp_path / "saved", moments, beat=lambda: None)
    others = {**WEIGHTS, "head.weight": torch.empty(3, 3)}
    with pytest.raises(CheckpointError, match=r"the optimiser's numbers of other weights, such as head\.weight"):
        read_moments(tmp_path / "saved", others, alone=True)


@pytest.mark.parametrize(("alone", "error"), [(True, CheckpointError), (False, RuntimeError)])
def test_a_rank_whose_peer_is_lost_does_not_blame_the_checkpoint(
    group_of_one: None, moments: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    alone: bool, error: type[Exception],
) -> None:  # fmt: skip
    def load(*_: object, **__: object) -> None:
        raise RuntimeError("Connection closed by peer")

    write_moments(tmp_path / "saved", moments, beat=lambda: None)
    monkeypatch.setattr(sharded_moments, "load", load)
    with pytest.raises(error, match="Connection closed by peer"):
        read_moments(tmp_path / "saved", WEIGHTS, alone=alone)


def test_what_is_wrong_with_a_checkpoint_is_told_in_one_line_that_names_all_of_it(
    group_of_one: None, moments: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remedy is to delete that folder, and nobody could go on from it without its numbers."""

    def load(*_: object, **__: object) -> None:
        raise CheckpointException("read", {1: (ValueError("half of layer.1 is missing"), StackSummary())})

    write_moments(tmp_path / "step-000001" / "optimizer", moments, beat=lambda: None)
    monkeypatch.setattr(sharded_moments, "load", load)
    with pytest.raises(CheckpointError) as caught:
        read_moments(tmp_path / "step-000001" / "optimizer", WEIGHTS, alone=False)
    assert caught.value.message == f"checkpoint {tmp_path}/step-000001 cannot be read: half of layer.1 is missing"
