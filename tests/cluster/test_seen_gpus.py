"""Which GPUs and settings of GPUs the process of an actor sees, without a cluster."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from loopwright.cluster import host


@pytest.mark.parametrize(("reserved", "seen"), [([], ""), (["2"], "2"), (["2", "3"], "2,3")])
def test_an_actor_sees_the_gpus_that_it_reserves(
    monkeypatch: pytest.MonkeyPatch, reserved: list[str], seen: str
) -> None:
    """Ray names those that are reserved. To an actor without one it shows all."""
    context = SimpleNamespace(get_accelerator_ids=lambda: {"GPU": reserved, "TPU": []})
    monkeypatch.setattr(host.ray, "get_runtime_context", lambda: context)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(reserved) or "0,1,2,3")
    host._hide_gpus()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


def test_an_actor_keeps_the_settings_of_what_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "RAY_JOB_ID": "1", "OPENAI_API_KEY": "secret", "X": "y"}
    monkeypatch.setattr(host.os, "environ", dict(env))
    host._forget_secrets()
    assert set(host.os.environ) == {"PYTORCH_ALLOC_CONF", "RAY_JOB_ID"}
