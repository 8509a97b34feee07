"""A tokenizer loads without torch, and is the one that `AutoTokenizer` would have loaded: never silently other ids."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from loopwright.errors import ModelError
from loopwright.models import tokenizer
from loopwright.models.tokenizer import TokenizerSource, chosen_kind, load_tokenizer
from loopwright.render.choose import make_renderer
from loopwright.testing.tiny import tiny_tokenizer
from loopwright.types import Message

PROBE = "Two  words\n\tof <b>caf\u00e9</b> cafe\u0301 \N{SNOWMAN}, 3+4=7;\r\n\u4e2d it's <|im_end|>."
"""A text in which tokenizers differ; among it, one letter with its accent in two spellings."""
TALK: list[Message] = [{"role": "user", "content": "What is 12+7?"}, {"role": "assistant", "content": "19"}]

FOLDERS = {
    "any fast one": ("TokenizersBackend", "llama"),
    "under its old name": ("PreTrainedTokenizerFast", "llama"),
    "without a model": ("TokenizersBackend", None),
    "wrong class in its config": ("PreTrainedTokenizerFast", "qwen2"),
    "a class of its own": ("Qwen2Tokenizer", "qwen3"),
    "byte-level as Llama's": ("LlamaTokenizer", "llama"),
    "no class in its config": (None, "gpt_neox"),
    "a slow one": ("ByT5Tokenizer", "t5"),
}
"""The class that is named in the tokenizer's config, and the type of the model."""

IN_A_PROCESS = """
import json, pickle, sys
from loopwright.models.tokenizer import TokenizerSource
from loopwright.render.choose import make_renderer
source, messages = pickle.loads(bytes.fromhex(sys.argv[1]))
renderer = make_renderer(source.load())
prompt = renderer.render(messages[:1])
answer = renderer.answered(messages)[1]
parsed = renderer.parse(answer).content
print(json.dumps({"prompt": prompt, "answer": answer, "parsed": parsed, "torch": "torch" in sys.modules}))
"""


def write_folder(folder: Path, kind: str | None, model: str | None) -> str:
    tiny_tokenizer().save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    del config["tokenizer_class"]
    file.write_text(json.dumps(config | ({"tokenizer_class": kind} if kind else {})))
    if model is not None:
        (folder / "config.json").write_text(json.dumps({"model_type": model}))
    return str(folder)


def in_a_process(source: TokenizerSource) -> dict[str, Any]:
    sent = pickle.dumps((source, TALK)).hex()
    done = subprocess.run([sys.executable, "-c", IN_A_PROCESS, sent], capture_output=True, text=True, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def check_talk(said: dict[str, Any], folder: str) -> None:
    """What a process said, against the renderer of what `AutoTokenizer` loads."""
    renderer = make_renderer(AutoTokenizer.from_pretrained(folder))
    written = renderer.answered(TALK)
    assert written is not None
    assert tuple(said["prompt"]) == renderer.render(TALK[:1])
    assert tuple(said["answer"]) == written[1]
    assert said["parsed"] == "19"
    assert not said["torch"]


@pytest.mark.parametrize(("kind", "model"), FOLDERS.values(), ids=FOLDERS)
def test_the_class_that_is_chosen_loads_what_auto_tokenizer_loads(
    kind: str | None, model: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path, kind, model)
    auto = AutoTokenizer.from_pretrained(folder)
    with monkeypatch.context() as patched:
        # The choice is made in a process that ends afterwards. Here, what it changes is put back.
        patched.setattr(PreTrainedTokenizerBase, "from_pretrained", None)
        chosen = tokenizer._choose(folder)
    loaded = load_tokenizer(folder, chosen)
    assert type(loaded) is type(auto)
    assert loaded.encode(PROBE) == auto.encode(PROBE)
    assert loaded.decode(auto.encode(PROBE)) == auto.decode(auto.encode(PROBE))
    assert loaded.chat_template == auto.chat_template
    assert loaded.special_tokens_map == auto.special_tokens_map
    assert loaded.init_kwargs == auto.init_kwargs
    assert loaded.added_tokens_decoder == auto.added_tokens_decoder
    if loaded.is_fast:
        assert loaded.backend_tokenizer.to_str() == auto.backend_tokenizer.to_str()


def test_the_class_matters(tmp_path: Path) -> None:
    """Why it is asked for: the general class reads the same files as other ids."""
    folder = write_folder(tmp_path, "PreTrainedTokenizerFast", "qwen2")
    assert PreTrainedTokenizerFast.from_pretrained(folder).encode(PROBE) != load_tokenizer(folder).encode(PROBE)


def test_a_process_that_is_told_the_class_needs_no_torch(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "Qwen2Tokenizer", "qwen3")
    source = TokenizerSource.of(load_tokenizer(folder))
    assert source == TokenizerSource(folder, "transformers.models.qwen2.tokenization_qwen2:Qwen2Tokenizer")
    check_talk(in_a_process(source), folder)


@pytest.mark.parametrize("kind", ["transformers.models.none.tokenization_none:None_", "transformers:NoSuchTokenizer"])
def test_a_class_of_another_version_is_refused(kind: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "Qwen2Tokenizer", "qwen3")
    with pytest.raises(ModelError, match=f"{kind} is not in the transformers that is installed here"):
        load_tokenizer(folder, kind)


@pytest.mark.real
@pytest.mark.parametrize("name", ["any fast one", "without a model", "wrong class in its config"])
def test_a_process_with_nothing_but_the_folder_needs_no_torch(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, *FOLDERS[name])
    check_talk(in_a_process(TokenizerSource(folder)), folder)


@pytest.mark.real
def test_the_choice_is_made_in_another_process(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "whole", "PreTrainedTokenizerFast", "qwen2")
    assert chosen_kind(folder) == "transformers.models.qwen2.tokenization_qwen2:Qwen2Tokenizer"
    (tmp_path / "config.json").write_text("{")
    assert chosen_kind(str(tmp_path)) is None


def test_where_no_choice_can_be_made_auto_tokenizer_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path, "TokenizersBackend", "llama")
    monkeypatch.setattr(tokenizer, "sys", SimpleNamespace(modules={}))
    monkeypatch.setattr(tokenizer, "chosen_kind", lambda source: None)
    assert load_tokenizer(folder).encode(PROBE) == tiny_tokenizer().encode(PROBE)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot load the tokenizer"):
        load_tokenizer(folder)


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no tokenizer") as raised:
        load_tokenizer(str(tmp_path))
    assert "save_pretrained" in raised.value.remedy
