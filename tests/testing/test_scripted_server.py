"""The script of a scripted engine: which reply fits, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loopwright.errors import ConfigError, RefusedError
from loopwright.models.tokenizer import load_tokenizer
from loopwright.testing.scripted_server import Replies, ScriptedReply, read_script
from loopwright.types import FinishReason, GenerateRequest, Sampling


def script(folder: Path, **fields: Any) -> Path:
    file = folder / "script.json"
    file.write_text(json.dumps(fields))
    return file


def test_the_first_reply_that_fits_is_said_and_several_take_turns() -> None:
    replies = Replies([ScriptedReply(["4", "5"], when="2+2"), ScriptedReply(["no"], when="?")])
    assert [replies(prompt) for prompt in ("2+2?", "why?", "2+2?", "2+2?")] == ["4", "no", "5", "4"]
    with pytest.raises(RefusedError, match="no reply of the script fits the prompt that ends in 'hello'"):
        replies("hello")


async def test_a_script_says_model_context_and_replies(tiny_llama_folder: Path, tmp_path: Path) -> None:
    engine, card = read_script(script(tmp_path, model=str(tiny_llama_folder), replies=[{"say": "The answer is 19."}]))
    assert (card.source, card.max_context) == (str(tiny_llama_folder), 1024)
    tokenizer = load_tokenizer(str(tiny_llama_folder))
    prompt = tuple(tokenizer.encode("What is 12+7?"))
    answer = await engine.generate(GenerateRequest("a/0", prompt, Sampling()))
    assert tokenizer.decode(answer.ids) == "The answer is 19.<|im_end|>"
    assert answer.finish is FinishReason.STOP


async def test_a_function_may_answer(tiny_llama_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def answer(prompt):\n    return prompt.upper()\n")
    file = script(tmp_path, model=str(tiny_llama_folder), max_context=99, answers="own.py:answer")
    engine, card = read_script(file)
    tokenizer = load_tokenizer(str(tiny_llama_folder))
    answer = await engine.generate(GenerateRequest("a/0", tuple(tokenizer.encode("abc")), Sampling()))
    assert (tokenizer.decode(answer.ids), card.max_context) == ("ABC<|im_end|>", 99)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "it needs `model`"),
        ({"model": "m", "replies": [{"when": "x"}]}, "is no reply"),
        ({"model": "m", "replies": [{"say": "a", "if": "b"}]}, "more than `when` and `say`"),
        ({"model": "m", "answers": "json:decoder"}, "is no function"),
    ],
)
def test_a_script_that_cannot_be_used_says_why(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_script(script(tmp_path, **fields))
