"""New weights in the scheduler: from files, from pickled tensors, or broadcast. And memory that is given away.

What raises here ends the server. SGLang catches a failed broadcast and a folder without weights; it does not catch a
wrong shape in tensors or files (its way back reads the same files again), an unknown group, or a flush that fails.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from loopwright.testing.sglang.faults import AskedToDieError, Faults
from loopwright.testing.sglang.groups import WeightGroup
from loopwright.testing.sglang.model import read_tensors, tensors_in
from loopwright.testing.sglang.pickles import read_pickles
from loopwright.testing.sglang.scheduler import Scheduler

Result = tuple[bool, str]
TAGS = ("kv_cache", "weights", "cuda_graph")


class Updates:
    """The orders that change weights. Each is carried out by the scheduler, between two steps."""

    def __init__(self, scheduler: Scheduler, faults: Faults, *, memory_saver: bool) -> None:
        self._scheduler = scheduler
        self._faults = faults
        self._memory_saver = memory_saver
        self._groups: dict[str, WeightGroup] = {}
        self._released: set[str] = set()

    async def from_disk(self, body: Mapping[str, Any]) -> Result:
        try:
            files = tensors_in(body["model_path"])
        except RuntimeError as error:
            return False, f"Failed to get weights iterator: {error}."
        tensors = await self._scheduler.compute.run(lambda: list(read_tensors(files)))
        return await self._put(tensors, body, "Succeeded to update model weights.")

    async def from_tensor(self, body: Mapping[str, Any]) -> Result:
        # A list with one string per rank; the fake has one rank.
        tensors = read_pickles(body["serialized_named_tensors"][0])
        return await self._put(tensors, body, "Success", direct=body.get("load_format") == "direct")

    async def from_distributed(self, body: Mapping[str, Any]) -> Result:
        name = body.get("group_name", "weight_update_group")
        if name not in self._groups:
            raise AssertionError(f"WeightGroup {name} not in {list(self._groups)}.")
        try:
            tensors = await asyncio.to_thread(
                self._groups[name].receive, body["names"], body["dtypes"], body["shapes"], body.get("load_format")
            )
            return await self._put(tensors, body, "Succeeded to update parameter online.")
        except (RuntimeError, ValueError) as error:
            return False, (
                f"Failed to update parameter online: {error}. The full weights of the ModelRunner are partially "
                "updated. Please discard the whole weights."
            )

    async def init_group(self, body: Mapping[str, Any]) -> Result:
        try:
            group = await asyncio.to_thread(
                WeightGroup,
                body["master_address"],
                body["master_port"],
                body["rank_offset"],
                body["world_size"],
                body.get("group_name", "weight_update_group"),
                body.get("backend", "nccl"),
            )
        except (RuntimeError, ValueError) as error:
            return False, f"Failed to initialize custom process group: {error}."
        self._groups[group.name] = group
        return True, "Succeeded to initialize custom process group."

    def destroy_group(self, body: Mapping[str, Any]) -> Result:
        group = self._groups.pop(body.get("group_name", "weight_update_group"), None)
        if group is None:
            return False, "The group to be destroyed does not exist."
        group.close()
        return True, "Succeeded to destroy custom process group."

    def release(self, tags: Sequence[str] | None) -> None:
        if not self._scheduler.is_idle:
            raise AssertionError("release_memory_occupation should be called only when server is idle.")
        self._released |= set(tags or TAGS)
        if "kv_cache" in (tags or TAGS):
            self._scheduler.flush()
        if "weights" in (tags or TAGS) and self._memory_saver:
            self._scheduler.model.spoil()

    def resume(self, tags: Sequence[str] | None) -> None:
        for tag in tags or TAGS:
            self._released.remove(tag)

    def checksums(self) -> Mapping[str, str]:
        return {
            name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in self._scheduler.model.named()
        }

    async def _put(
        self, tensors: Sequence[tuple[str, torch.Tensor]], body: Mapping[str, Any], done: str, *, direct: bool = False
    ) -> Result:
        faults, half = self._faults, tensors[: len(tensors) // 2]
        if faults.refuse_updates:
            return False, "the test asked for it"
        if faults.hang_in_update:
            await asyncio.Event().wait()
        put = self._scheduler.model.put
        if faults.die_in_update:
            await self._scheduler.compute.run(put, half)
            raise AskedToDieError
        if not faults.ignore_updates:
            await self._scheduler.compute.run(put, half if faults.half_updates else tensors, direct=direct)
        if body.get("flush_cache", True) and not self._scheduler.flush():
            raise AssertionError("Cache flush failed after updating weights")
        return True, done
