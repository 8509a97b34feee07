"""The optimiser's numbers in torch's format for checkpoints of ranks, written here by a group of one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from traceback import StackSummary

import pytest
import torch
from safetensors.torch import save_file
from torch import distributed
from torch.distributed.checkpoint._hf_utils import CUSTOM_METADATA_KEY, SAVED_OFFSETS_KEY
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


def write_three_shards(folder: Path, moments: Mapping[str, torch.Tensor]) -> list[Path]:
    """The files that three ranks write. The third has no row of a tensor of two."""
    folder.mkdir(parents=True)
    files = [folder / f"shard-{rank:05}-model-00001-of-00001.safetensors" for rank in (1, 2, 3)]
    for rank, file in enumerate(files):
        parts = {name: (tensor.chunk(3), rank) for name, tensor in moments.items() if rank < len(tensor.chunk(3))}
        starts = {
            name: {SAVED_OFFSETS_KEY: [sum(map(len, parts[:own])), *[0] * (parts[0].dim() - 1)]}
            for name, (parts, own) in parts.items()
        }
        rows = {name: parts[own].contiguous() for name, (parts, own) in parts.items()}
        save_file(rows, file, {CUSTOM_METADATA_KEY: json.dumps(starts)})
    return files


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("missing", [None, 1, 2, 3])
def test_a_checkpoint_that_lacks_a_file_of_a_rank_is_refused(
    group_of_one: None, tmp_path: Path, alone: bool, missing: int | None
) -> None:
    """torch leaves what no file has as it was in memory."""
    weights = {**WEIGHTS, "norm.weight": torch.empty(2), "head.bias": torch.empty(1)}
    moments = {f"{name}/{moment}": torch.rand_like(weight) for name, weight in weights.items() for moment in MOMENTS}
    files = write_three_shards(tmp_path / "step-000001" / "optimizer", moments)
    if missing is None:
        found = read_moments(files[0].parent, weights, alone=alone)
        assert all(torch.equal(found[name], tensor) for name, tensor in moments.items())
        return
    files[missing - 1].unlink()
    with pytest.raises(CheckpointError, match=f"{files[missing - 1].name} is missing") as caught:
        read_moments(files[0].parent, weights, alone=alone)
    assert f"checkpoint {tmp_path}/step-000001 cannot be read" in caught.value.message
    assert "delete that folder" in caught.value.remedy
