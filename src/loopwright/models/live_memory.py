"""Counts the memory that tensors take while they live."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, counts the bytes of the tensors that operations make. Tensors that were there before do not
    count. It also counts tensors without numbers, of the device `meta` or of a FakeTensorMode."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self.used = 0
        self._storages: set[int] = set()

    def counts(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's memory counts already."""
        return tensor.untyped_storage()._cdata in self._storages

    def count(self, tensor: torch.Tensor) -> None:
        """Count a tensor until it is freed."""
        if self.counts(tensor):
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        self._storages.add(key)
        self.used += size
        self.peak = max(self.peak, self.used)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self.used -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        there = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        result = func(*args, **kwargs)
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.untyped_storage()._cdata not in there:
                self.count(x)
        return result
