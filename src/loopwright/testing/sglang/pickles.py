"""Reads the pickled tensors of /update_weights_from_tensor: only lists, tuples, strings and tensors with their data.

SGLang also takes handles of CUDA memory and of shared memory; this takes tensors that were pickled whole.
"""

from __future__ import annotations

import base64
import io
import pickle
from collections import OrderedDict
from typing import Any

import torch

ALLOWED: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("collections", "OrderedDict"): OrderedDict,
    # torch's own function reads any pickle.
    ("torch.storage", "_load_from_bytes"): lambda data: torch.load(io.BytesIO(data), weights_only=True),
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is not read")
        return ALLOWED[module, name]


def read_pickles(text: str) -> list[tuple[str, torch.Tensor]]:
    return list(_Reader(io.BytesIO(base64.b64decode(text))).load())
