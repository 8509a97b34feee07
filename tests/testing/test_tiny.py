"""The tiny models load with plain transformers, and are the same every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.testing.tiny import MAX_CONTEXT, tiny_llama, tiny_qwen3, tiny_tokenizer

TOKENIZER = tiny_tokenizer()


@given(st.text())
def test_any_text_survives_the_tokenizer(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize("build", [tiny_llama, tiny_qwen3])
def test_models_load_and_are_repeatable(build: Any, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    state = torch.random.get_rng_state()
    first, second = (AutoModelForCausalLM.from_pretrained(build(tmp_path / name)) for name in ("a", "b"))
    assert torch.equal(state, torch.random.get_rng_state()), "building a model must not disturb the caller's seed"
    assert first.dtype == torch.float32
    assert first.config.max_position_embeddings == MAX_CONTEXT
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a")
    messages = [{"role": "user", "content": "What is 12+7?"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids == TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert first(torch.tensor([ids])).logits.shape[-1] == len(tokenizer)
