"""A tokenizer and models that are small enough for unit tests. They are made when needed; nothing is downloaded.

The tokenizer is a byte-level BPE with a ChatML template, so it keeps any text. The models have random weights from a
fixed seed and grouped-query attention. They learn nothing useful, but compute exactly as large models do. This needs
the `torch` extra.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# The tokenizer's trainer finds merges in repeated text. So a text has several tokenisations, as with a real tokenizer.
CORPUS = ("What is 12+7? Answer with the number only.", "The answer is 19.", "user assistant system")

MAX_CONTEXT = 1024

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": MAX_CONTEXT,
    "tie_word_embeddings": True,
}


def tiny_tokenizer(template: str | None = CHATML) -> Any:
    """A `PreTrainedTokenizerFast` of about 300 tokens; `template` None leaves it without a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 2, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=MAX_CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = template
    return wrapped


def tiny_llama(folder: Path, *, tokenizer: Any = None, **overrides: Any) -> Path:
    """Write a random Llama and the tiny tokenizer, or another one, to `folder`; `overrides` go into its config."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return _write(folder, LlamaConfig, LlamaForCausalLM, overrides, tokenizer)


def tiny_qwen3(folder: Path, **overrides: Any) -> Path:
    """Write a random Qwen3 (which normalises queries and keys) and the tiny tokenizer to `folder`."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return _write(folder, Qwen3Config, Qwen3ForCausalLM, overrides)


def tiny_qwen2(folder: Path, **overrides: Any) -> Path:
    """Write a random Qwen2 (whose queries, keys and values have biases) and the tiny tokenizer to `folder`."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return _write(folder, Qwen2Config, Qwen2ForCausalLM, overrides)


def _write(folder: Path, config_class: Any, model_class: Any, overrides: dict[str, Any], tokenizer: Any = None) -> Path:
    import torch

    tokenizer = tiny_tokenizer() if tokenizer is None else tokenizer
    config = config_class(
        vocab_size=len(tokenizer),
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **(SHAPE | overrides),
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model_class(config).to(torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
