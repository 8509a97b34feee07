"""`loopwright drift` on files of conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loopwright.cli import main
from loopwright.testing.tiny import tiny_tokenizer

CALL = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "12+7?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "x", "content": "19"},
    {"role": "assistant", "content": "The answer is 19."},
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def write(tmp_path: Path, *lines: object) -> Path:
    file = tmp_path / "talk.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def drift(model: Path, file: Path, *options: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["drift", "--model", str(model), "--transcript", str(file), *options])
    return int(left.value.code or 0)


def test_a_recording_in_openai_s_shape_is_read(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tools = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {}}}]
    assert drift(model, write(tmp_path, {"messages": TALK, "tools": tools}, TALK), "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["conversations"], facts["chains"], facts["forks"], facts["wrong"]) == (2, 2, 0, 0)
    assert facts["renderer"] == "chat template"


def test_the_first_mismatch_is_shown_as_a_token_diff(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = tiny_tokenizer()
    ids = [t for sign in "The answer is 19." for t in tokenizer.encode(sign, add_special_tokens=False)]
    odd = [*TALK[:-1], {**TALK[-1], "ids": [*ids, tokenizer.eos_token_id]}]
    assert drift(model, write(tmp_path, {"messages": TALK}, {"messages": odd})) == 0
    out = capsys.readouterr().out
    assert "2 conversations, 2 chains, 0 forks" in out
    assert "line 2: " in out
    assert "- recorded  ⟦T⟧ ⟦h⟧ ⟦e⟧" in out
    assert "+ naive    " in out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"task": 1}, "talk.jsonl:1 is no conversation"),
        ({"messages": [{"role": "user"}, {"content": "no role"}]}, "talk.jsonl:1 has a message of an unknown shape"),
    ],
)
def test_what_is_no_conversation_is_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: object, message: str
) -> None:
    assert drift(model, write(tmp_path, line)) != 0
    assert message in capsys.readouterr().err


def test_a_missing_file_is_named(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert drift(model, tmp_path / "nothing.jsonl") != 0
    assert "there is no" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name the folder of a run, or a file with --transcript"),
        (["run", "--transcript", "talk.jsonl"], "name the folder of a run, or a file with --transcript"),
        (["run"], "does not exist"),
    ],
)
def test_a_run_or_a_file_is_named_and_not_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["drift", *(str(tmp_path / one) if one == "run" else one for one in arguments)])
    assert left.value.code
    assert words in capsys.readouterr().err


def test_a_transcript_needs_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["drift", "--transcript", str(write(tmp_path, TALK))])
    assert left.value.code
    assert "name the model" in capsys.readouterr().err
