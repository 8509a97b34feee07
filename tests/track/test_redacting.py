"""Secrets do not reach readers of logs, errors and events (S3)."""

from __future__ import annotations

import io
import logging
import re
from pathlib import Path

import pytest
import yaml

import loopwright
from loopwright.config import load
from loopwright.core.redaction import MARK, Redactor
from loopwright.errors import EngineError
from loopwright.track.jsonl import EVENTS, JsonlTracker, read_jsonl
from loopwright.track.redacting import redacting, redactor_of

KEY = "sk-0123456789abcdef"


@pytest.mark.parametrize("name", ["loopwright", "uvicorn.error", "asyncio"])
def test_every_handler_gets_the_record_without_the_secret(name: str) -> None:
    heard, log = io.StringIO(), logging.getLogger(name)
    filters, handlers = list(log.filters), [logging.StreamHandler(heard) for _ in range(2)]
    assert log.parent is not None
    for logger, handler in zip((log.parent, log), handlers, strict=True):
        logger.addHandler(handler)
    try:
        with redacting(Redactor([KEY])):
            log.warning("the key is %s, and %d is not", KEY, 7)
            try:
                raise ValueError(f"bad key {KEY}")
            except ValueError:
                log.exception("it broke")
    finally:
        for logger, handler in zip((log.parent, log), handlers, strict=True):
            logger.removeHandler(handler)
    assert log.filters == filters, "nothing of the run stays behind"
    said = heard.getvalue()
    assert said.count(f"the key is {MARK}, and 7 is not") == 2
    assert said.count(f"ValueError: bad key {MARK}") == 2
    assert "Traceback" in said
    assert KEY not in said


def test_an_error_that_leaves_keeps_its_kind_and_loses_the_secret() -> None:
    error = EngineError(f"it said {KEY}", remedy=f"not {KEY}", status=401, body=[KEY])
    error.add_note(f"besides, {KEY}")
    with pytest.raises(EngineError) as caught, redacting(Redactor([KEY])):
        raise error
    assert str(caught.value) == f"it said {MARK}\n  -> not {MARK}"
    assert caught.value.facts == {"status": 401, "body": [MARK]}
    assert caught.value.__notes__ == [f"besides, {MARK}"]
    assert KEY not in repr(caught.value)


def test_events_hold_no_secret(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path, Redactor([KEY]))
    with tracker.span("engine_lost", step=1, last_words=f'{{"key": "{KEY}"}}', folder=tmp_path):
        pass
    (event,) = read_jsonl(tmp_path / EVENTS)
    assert event["facts"]["last_words"] == f'{{"key": "{MARK}"}}'


def test_the_secrets_of_a_config_are_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    env = {"JUDGE_KEY": "the-judges-key", "SEARCH_TOKEN": "the-search-token", "DATA": "/data/here", "OTHER": "short"}
    server = {
        "kind": "mcp",
        "command": ["notes"],
        "env": {"NOTES_PASSWORD": "the-notes-password", "MOOD": "sunny-side"},
    }
    other = {
        "kind": "mcp",
        "command": ["more"],
        "env": {"NOTES_PASSWORD": "another-password", "JUDGE_KEY": "another-judges-key"},
    }
    config = {
        "model": {"path": "smollm2"},
        "trainer": {"run_dir": "run", "steps": 1},
        "data": {"kind": "python", "path": "tasks.py:tasks"},
        "agent": {"kind": "tool", "tools": [server, other], "judger": "own"},
        "judgers": {
            "own": {"kind": "native", "path": "judge.py:judge", "env": ["SEARCH_TOKEN", "DATA"]},
            "web": {"kind": "http", "url": "http://host/", "api_key_env": "JUDGE_KEY"},
            "other": {"kind": "http", "url": "http://host/", "api_key_env": "OTHER"},
            "named": {"kind": "http", "url": "http://host/?mood=sunny-side&api_key=the-urls%2Fkey"},
            "model": {"kind": "llm", "base_url": "http://host/v1?key=the-models-key", "model": "m"},
        },
    }
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(config))
    redact = redactor_of(load(file, env=env), "the-engines-key", None)
    for secret in ("the-judges-key", "the-search-token", "the-notes-password", "the-engines-key"):
        assert redact(f"it is {secret}.") == f"it is {MARK}."
    for secret in ("another-password", "another-judges-key"):
        assert redact(f"it is {secret}.") == f"it is {MARK}."
    for secret in ("the-urls%2Fkey", "the-urls/key", "the-models-key"):
        assert redact(f"it is {secret}.") == f"it is {MARK}."
    assert redact("sunny-side /data/here short") == "sunny-side /data/here short"
    assert "OTHER has less than 8 characters" in caplog.text


def test_all_of_ours_goes_to_the_logger_that_is_redacted() -> None:
    """A filter sees what its own logger is told, and nothing of the loggers below it."""
    folder = Path(loopwright.__file__).parent
    told = {name for file in folder.rglob("*.py") for name in re.findall(r"getLogger\((.*?)\)", file.read_text())}
    assert told <= {'"loopwright"', '"math_verify"', "of_ray"}
