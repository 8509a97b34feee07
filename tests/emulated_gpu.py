"""A device that is not the CPU, for a machine without one: a tensor of it holds a CPU tensor, and every operation is
computed on that.

It proves where tensors are, not CUDA's kernels, streams or speed: an operation that gets tensors of both devices is an
error, as it is on a GPU, and so is changing a tensor that was made in inference mode outside of that mode. Its memory
is counted, and can be limited. `NoDeviceForgotten` refuses factory calls that name no device, which make a tensor on
the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from loopwright.models.live_memory import LiveMemory

NAME = "gpu"
DEVICE = f"{NAME}:0"
MAY_MIX = ("_to_copy", "to", "copy_", "_local_scalar_dense", "set_")
FACTORIES = (
    *("arange", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "ones", "rand", "randint", "randn"),
    *("randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros"),
)


class _NoModule:
    """What torch asks of its own accord about an accelerator: there is none. Tests that know of it name it."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return False

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None: ...


# Before the first backward pass of the process: autograd makes its queues, one for each device, only once.
_setup_privateuseone_for_python_backend(NAME, backend_module=_NoModule())


class MixedDevicesError(Exception):
    """An operation got tensors of both devices."""


class OnGpu(torch.Tensor):
    """A tensor of the device. Its numbers are in `held`, on the CPU. `made_in_inference`: its memory was allocated in
    inference mode. torch forgets that for what a mode like `Gpu` returns."""

    held: torch.Tensor
    made_in_inference: bool = False

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> OnGpu:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(DEVICE),
        )
        made.held = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        with Gpu.current():
            return func(*args, **(kwargs or {}))

    def tolist(self) -> Any:
        return self.held.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise MixedDevicesError(f"numpy cannot read a tensor of {DEVICE}")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"OnGpu({self.held!r})"


class Gpu(LiveMemory):
    """Computes with tensors of the device while it is entered. Its memory is what its storages take; `limit` in
    bytes."""

    _entered: ClassVar[list[Gpu]] = []

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self.limit = limit
        self.operations = 0

    @classmethod
    def current(cls) -> Gpu:
        return cls._entered[-1] if cls._entered else Gpu()

    def __enter__(self) -> Gpu:
        self._entered.append(self)
        # `torch.tensor(..., device=)` makes a tensor of the CPU first, and moves it where we see it.
        torch._C._set_only_lift_cpu_tensors(True)
        # A backward pass would have a thread for each device, which ends the process at an error here.
        torch._C._set_multithreading_enabled(False)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._entered.pop()
        torch._C._set_only_lift_cpu_tensors(bool(self._entered))
        torch._C._set_multithreading_enabled(not self._entered)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        flat = tree_leaves((args, kwargs))
        tensors = [x for x in flat if isinstance(x, torch.Tensor)]
        name = func.overloadpacket.__name__
        here = [x for x in tensors if isinstance(x, OnGpu)]
        wanted = [x for x in flat if isinstance(x, torch.device)]
        makes = wanted[0].type == NAME if wanted else bool(here)
        if here and name not in MAY_MIX:
            others = [x for x in tensors if not isinstance(x, OnGpu) and x.dim() > 0]
            if others:
                raise MixedDevicesError(f"{func} got tensors of {DEVICE} and of {others[0].device}")
        if not torch.is_inference_mode_enabled() and any(
            x.made_in_inference for x in _written(func, args, kwargs or {})
        ):
            raise RuntimeError(f"{func}: Inplace update to inference tensor outside InferenceMode is not allowed.")
        inner_args, inner_kwargs = tree_map(_inner, (list(args), dict(kwargs or {})))
        result = func(*inner_args, **inner_kwargs)
        # What an operation changes in place, or returns as it was, stays the same tensor on its device.
        known = {id(_inner(x)): x for x in tensors}

        def placed(x: torch.Tensor) -> torch.Tensor:
            same = known.get(id(x))
            if same is not None and isinstance(same, OnGpu) is makes:
                return same
            moved = x.clone() if same is not None else x
            return self._made(moved, here) if makes else moved

        self.operations += makes
        return tree_map_only(torch.Tensor, placed, result)

    def _made(self, inner: torch.Tensor, arguments: Sequence[OnGpu]) -> OnGpu:
        self.count(inner)
        made, storage = OnGpu(inner), inner.untyped_storage()._cdata
        viewed = next((x for x in arguments if x.held.untyped_storage()._cdata == storage), None)
        made.made_in_inference = torch.is_inference_mode_enabled() if viewed is None else viewed.made_in_inference
        return made

    def count(self, tensor: torch.Tensor) -> None:
        size = 0 if self.counts(tensor) else tensor.untyped_storage().nbytes()
        if self.limit is not None and self.used + size > self.limit:
            raise torch.OutOfMemoryError(f"Tried to allocate {size} bytes; {self.used} are in use")
        super().count(tensor)


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[OnGpu]:
    """The arguments that an operation changes."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from (x for x in tree_leaves(given) if isinstance(x, OnGpu))


def _inner(x: Any) -> Any:
    """What an argument is on the CPU."""
    if isinstance(x, torch.device) and x.type == NAME:
        return torch.device("cpu")
    return x.held if isinstance(x, OnGpu) else x


class NoDeviceForgotten(TorchFunctionMode):
    """Refuses factory calls that name no device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name in FACTORIES and func is getattr(torch, name) and kwargs.get("device") is None:
            raise MixedDevicesError(f"torch.{name} is called without a device")
        return func(*args, **kwargs)
