"""The proof at load looks at every position that a run may use, and at numbers however small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM
from transformers.masking_utils import (
    and_masks,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from loopwright.errors import ModelError
from loopwright.models import plans
from loopwright.models.lean import LeanForward
from loopwright.models.load import load_model
from loopwright.models.masks import MaskedPlan, windows_of
from loopwright.models.rotary import FIRST_TABLE, Angles
from loopwright.testing.tiny import SHAPE, tiny_llama, tiny_tokenizer

CONTEXT = 4096


class Config:
    model_type = "made up"
    layer_types = ("full_attention", "sliding_attention")


class Model:
    config = Config()
    device = torch.device("cpu")


def asked(*layers: Any) -> set[int]:
    """The windows of a model whose layers have these masks and windows."""
    plan = MaskedPlan([])
    plan.layers = dict(enumerate(layers))
    return windows_of(Model(), plan, CONTEXT)


def by_hand(batch: Any, head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """A mask that knows two tokens only."""
    return torch.ones(2, dtype=torch.bool)[key]


def test_windows_that_masks_and_calls_agree_on() -> None:
    wide, beyond = (sliding_window_causal_mask_function(window) for window in (1000, CONTEXT))
    assert asked((causal_mask_function, None), (wide, 1000)) == {1000}
    assert asked((causal_mask_function, None), (beyond, None)) == set()
    assert asked((None, None), (None, 1000)) == {1000}


@pytest.mark.parametrize(
    ("sees", "window", "why"),
    [
        (sliding_window_causal_mask_function(CONTEXT - 1), None, "layer 1 has a sliding window"),
        (None, None, "layer 1 has a sliding window"),
        (causal_mask_function, 1000, "not that of its window"),
        (sliding_window_causal_mask_function(1001), 1000, "not that of its window"),
        (chunked_causal_mask_function(1024, torch.zeros(1, dtype=torch.long)), 1024, "not that of its window"),
        (and_masks(causal_mask_function, by_hand), None, "depends on more than the distance of tokens"),
    ],
)
def test_a_layer_that_sees_something_else_is_refused(sees: Any, window: int | None, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        asked((causal_mask_function, None), (sees, window))


def test_numbers_beyond_a_window_are_compared(monkeypatch: pytest.MonkeyPatch, tiny_sliding_folder: Path) -> None:
    """Masks may be right, and what we compute of them wrong."""
    causal: Any = plans._causal

    def sees_one_more(*tensors: Any) -> torch.Tensor:
        *others, window = tensors
        seen: torch.Tensor = causal(*others, None if window is None else window + 1)
        return seen

    monkeypatch.setattr(plans, "_causal", sees_one_more)
    with pytest.raises(ModelError, match="differ by"):
        load_model(str(tiny_sliding_folder), cache=tiny_sliding_folder)


def test_a_long_context_takes_no_memory_to_prove(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A table of all angles up to the last position would take gigabytes."""
    computed: list[int] = []
    compute = Angles._compute

    def counted(self: Angles, positions: torch.Tensor) -> torch.Tensor:
        computed.append(len(positions))
        return compute(self, positions)

    monkeypatch.setattr(Angles, "_compute", counted)
    folder = tiny_llama(tmp_path, max_position_embeddings=1 << 17)
    loaded = load_model(str(folder), cache=tmp_path)
    assert isinstance(loaded.forward, LeanForward)
    assert loaded.max_context == 1 << 17
    assert max(computed) == FIRST_TABLE


def test_a_cap_on_logits_is_refused_while_they_are_small(tmp_path: Path) -> None:
    """With new weights it changes them by less than float32 does elsewhere. After a training it would not."""
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    config = Gemma2Config(vocab_size=len(tokenizer), attn_logit_softcapping=None, **SHAPE)
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="product of hidden states and head"):
        load_model(str(tmp_path), cache=tmp_path)


def test_weights_that_are_no_numbers_are_refused(tiny_llama_folder: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_folder)
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="NaN"):
        load_model(str(tmp_path), cache=tmp_path)


@pytest.mark.parametrize("max_context", [1, 2, 5, 6, 20])
def test_a_short_context_is_proven_too(max_context: int, tiny_llama_folder: Path, tiny_sliding_folder: Path) -> None:
    for folder in (tiny_llama_folder, tiny_sliding_folder):
        assert load_model(str(folder), cache=folder, max_context=max_context).max_context == max_context
