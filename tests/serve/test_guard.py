"""The door of servers, and what they are bound to (S3)."""

from __future__ import annotations

import json
import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from loopwright.errors import ConfigError, EngineError, RefusedError, WeightsError
from loopwright.serve.errors import error_body, read_error
from loopwright.serve.guard import Guard
from loopwright.serve.keys import check_key, new_key, read_key
from loopwright.serve.listen import check_bind, listening


async def reading(scope: Any, receive: Any, send: Any) -> None:
    """An app that reads its body to the end."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def status_of(headers: dict[str, str], chunks: list[bytes], **options: Any) -> int:
    sent: list[MutableMapping[str, Any]] = []
    bodies = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    bodies.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Any:
        return bodies.pop(0)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "path": "/x", "headers": [(k.encode(), v.encode()) for k, v in headers.items()]}
    await Guard(reading, **({"key": None, "hosts": None} | options))(scope, receive, send)
    return int(sent[0]["status"])


async def test_a_body_has_a_limit_whether_it_says_its_length_or_not() -> None:
    assert await status_of({"content-length": "10"}, [b"x" * 10], max_body=10) == 200
    assert await status_of({"content-length": "11"}, [], max_body=10) == 413
    assert await status_of({"content-length": "many"}, [], max_body=10) == 413
    with pytest.raises(RefusedError, match="10 bytes at most"):
        await status_of({}, [b"x" * 6, b"x" * 6], max_body=10)


async def test_a_server_for_all_answers_to_every_name_but_not_without_its_key() -> None:
    assert await status_of({"host": "anything"}, [], key="k") == 401
    assert await status_of({"host": "anything", "authorization": "Bearer k"}, [], key="k") == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.com"])
async def test_a_wider_bind_without_a_key_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="has no key"):
        async with listening(reading, host=host, key=None):
            pass
    check_bind(host, "key")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_loopback_needs_none(host: str) -> None:
    check_bind(host, None)


async def test_a_port_that_is_taken_is_a_clear_error() -> None:
    async with listening(reading, key=None) as port:
        with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1:{port}"):
            async with listening(reading, port=port, key=None):
                pass


def test_keys_are_long_and_never_twice_the_same() -> None:
    assert new_key() != new_key()
    assert len(check_key(new_key(), "here")) >= 40


def test_a_key_is_read_from_a_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("secret\n")
    file.chmod(0o600)
    assert read_key(file) == "secret"
    for mode in (0o640, 0o604, 0o660):
        file.chmod(mode)
        with pytest.raises(ConfigError, match=f"mode {mode:o}"):
            read_key(file)


@pytest.mark.parametrize("content", [b"", b"two words", b"\xff", "schlüssel".encode()])
def test_what_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(ConfigError):
        read_key(file)
    with pytest.raises(ConfigError):
        read_key(tmp_path / "missing")
    assert os.listdir(tmp_path) == ["key"]


def test_an_error_arrives_as_the_kind_it_was() -> None:
    kinds = {"WeightsError": WeightsError}
    sent = json.loads(json.dumps(error_body(WeightsError("gone", remedy="again"))))
    arrived = read_error(sent, kinds, EngineError)
    assert (type(arrived), arrived.message, arrived.remedy) == (WeightsError, "gone", "again")
    for odd in ("<html>", None, {"error": "x"}, {"error": {"type": "Other", "message": "m"}}):
        assert type(read_error(odd, kinds, EngineError)) is EngineError
