"""Text documents in every API: the model reads them, and a history with them continues its chain."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from gateway_house import house, renderer
from hypothesis import given
from hypothesis import strategies as st

from loopwright.errors import RefusedError
from loopwright.gateway.dialects import AnthropicMessages, ChatCompletions, Dialect, Gemini, Responses
from loopwright.gateway.store import SqliteStore
from loopwright.types import ChainStart

TEXT = "Zeile eins: grüße 🙂\n  <|im_end|> two"
KINDS = ("chat", "messages", "responses", "gemini")


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def request(kind: str, data: str, media_type: str = "text/plain", name: str = "") -> tuple[Dialect, dict[str, Any]]:
    """A request whose first message is a document."""
    url, named = f"data:{media_type};base64,{data}", {"filename": name} if name else {}
    match kind:
        case "chat":
            part: dict[str, Any] = {"type": "file", "file": {"file_data": url, **named}}
            return ChatCompletions(), {"messages": [{"role": "user", "content": [part]}]}
        case "messages":
            source = {"type": "base64", "media_type": media_type, "data": data}
            part = {"type": "document", "source": source, "title": name}
            return AnthropicMessages(), {"messages": [{"role": "user", "content": [part]}], "max_tokens": 99}
        case "responses":
            part = {"type": "input_file", "file_data": url, **named}
            return Responses(), {"input": [{"role": "user", "content": [part]}]}
        case _:
            part = {"inlineData": {"mimeType": media_type, "data": data}}
            return Gemini(), {"contents": [{"role": "user", "parts": [part]}]}


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.characters(codec="utf-8")))
def test_the_model_reads_what_the_document_says(kind: str, text: str) -> None:
    dialect, body = request(kind, encoded(text))
    (message,) = dialect.read(body).messages
    assert message == {"role": "user", "content": text}


@pytest.mark.parametrize("kind", ["chat", "messages", "responses"])
def test_a_document_is_named(kind: str) -> None:
    dialect, body = request(kind, encoded(TEXT), name="notes.md")
    assert dialect.read(body).messages[0]["content"] == f"notes.md\n{TEXT}"


def test_a_file_without_a_media_type_is_known_by_its_name() -> None:
    for name, is_read in (("notes.py", True), ("notes.pdf", False), ("", False)):
        body = {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": encoded(TEXT)}]}]}
        body["input"][0]["content"][0]["filename"] = name  # type: ignore[index]
        if is_read:
            assert TEXT in Responses().read(body).messages[0]["content"]
        else:
            with pytest.raises(RefusedError):
                Responses().read(body)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("data", "media_type"),
    [(encoded(TEXT), "application/pdf"), ("?", "text/plain"), (base64.b64encode(b"\xff").decode(), "text/plain")],
    ids=["no text", "not base64", "not UTF-8"],
)
def test_a_task_that_cannot_be_read_is_refused(kind: str, data: str, media_type: str) -> None:
    dialect, body = request(kind, data, media_type)
    with pytest.raises(RefusedError, match="cannot be shown"):
        dialect.read(body)


async def test_a_restarted_gateway_goes_on_after_a_document(tmp_path: Path) -> None:
    _, body = request("messages", encoded(TEXT))
    async with SqliteStore(tmp_path / "sessions.sqlite") as store, house(["Read."], store=store) as h:
        await h.session()
        told = (await h.post("/session-1/v1/messages", body)).json()
        # Its words are text, also those that spell a control token.
        assert TEXT in renderer().text(h.engine.log[0][0].prompt_ids)
    grown = [*body["messages"], {"role": "assistant", "content": told["content"]}, body["messages"][0]]
    async with SqliteStore(tmp_path / "sessions.sqlite") as store, house(["Again."], store=store) as h:
        assert (await h.post("/session-1/v1/messages", {**body, "messages": grown})).status_code == 200
        assert h.recorder().starts == [ChainStart.FIRST]
