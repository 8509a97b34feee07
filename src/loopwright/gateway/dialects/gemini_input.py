"""The contents of a request to Gemini's API, and their parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from loopwright.gateway.dialects.dialect import ToolNames
from loopwright.gateway.parts import PartReader
from loopwright.gateway.reading import json_text, objects, text
from loopwright.gateway.refusals import invalid
from loopwright.types import Message

API_DEPTH = 16
"""No field of the API is deeper."""
NOT_OF_API = frozenset(
    {"args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema"}
)
"""What is inside of these has names of the agent's own."""
MEDIA = frozenset({"image", "audio", "video"})


def camel_names(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with the API's names in camel case: clients may send snake case. What agents and tools name stays."""
    return dict(_camel(body, API_DEPTH))


def _camel(value: Any, depth: int) -> Any:
    if not depth:
        return value
    if isinstance(value, list):
        return [_camel(one, depth - 1) for one in value]
    if not isinstance(value, dict):
        return value
    named = {_camel_name(name): said for name, said in value.items()}
    return {name: said if name in NOT_OF_API else _camel(said, depth - 1) for name, said in named.items()}


def _camel_name(name: str) -> str:
    first, *more = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in more) if first else name


def system_text(body: Mapping[str, Any]) -> str:
    said = body.get("systemInstruction")
    if isinstance(said, dict):
        parts = PartReader(is_task=True)
        return "\n".join(_text(part, place, parts) for place, part in objects(said.get("parts"), "systemInstruction"))
    return text(said, "systemInstruction")


def read_contents(value: Any) -> Iterator[Message]:
    names, is_task = ToolNames(), True
    for where, content in objects(value, "contents"):
        role, parts = text(content.get("role"), f"{where}.role") or "user", content.get("parts")
        listed = list(objects(parts, f"{where}.parts"))
        match role:
            case "model":
                is_task = False
                yield _model(listed, names)
            case "user" | "function":
                yield from _user(listed, names, is_task=is_task)
            case _:
                raise invalid(f"{where}.role", f"there is no role {role!r:.40}", remedy="use user or model")


def _model(parts: list[tuple[str, Mapping[str, Any]]], names: ToolNames) -> Message:
    reader, said, thoughts = PartReader(), "", ""
    calls: list[Mapping[str, str]] = []
    for where, part in parts:
        if isinstance(called := part.get("functionCall"), dict):
            call_id, name = text(called.get("id"), f"{where}.id"), text(called.get("name"), f"{where}.name")
            names.add(call_id, name)
            calls.append({"id": call_id, "name": name, "arguments": json_text(called.get("args") or {}, where)})
        elif part.get("thought") is True:
            thoughts += text(part.get("text"), f"{where}.text")
        else:
            said += _text(part, where, reader)
    message: dict[str, Any] = {"role": "assistant", "content": said}
    if thoughts:
        message["reasoning"] = thoughts
    if calls:
        message["tool_calls"] = tuple(calls)
    return reader.message(message)


def _user(parts: list[tuple[str, Mapping[str, Any]]], names: ToolNames, *, is_task: bool) -> Iterator[Message]:
    """The results of tools as separate messages, and the user's texts around them, in order."""
    said, reader, results = list[str](), PartReader(is_task=is_task), 0
    for where, part in parts:
        if not isinstance(result := part.get("functionResponse"), dict):
            said.append(_text(part, where, reader))
            continue
        if said:
            yield reader.message({"role": "user", "content": "\n".join(said)})
            said, reader = [], PartReader(is_task=is_task)
        results += 1
        yield _result(result, where, names)
    if said or not results:
        yield reader.message({"role": "user", "content": "\n".join(said)})


def _result(result: Mapping[str, Any], where: str, names: ToolNames) -> Message:
    call_id = text(result.get("id"), f"{where}.id")
    name = text(result.get("name"), f"{where}.name") or names.of(call_id)
    reader, response = PartReader(), result.get("response")
    told = [response["output"] if isinstance(response, dict) and set(response) == {"output"} else response]
    texts = [reader.result(one, where) for one in told if one is not None]
    texts += [_text(part, place, reader) for place, part in objects(result.get("parts"), f"{where}.parts")]
    return reader.message({"role": "tool", "content": "\n".join(texts), "tool_call_id": call_id, "name": name})


def _text(part: Mapping[str, Any], where: str, reader: PartReader) -> str:
    """The text of a part, or its placeholder."""
    if isinstance(part.get("text"), str):
        return str(part["text"])
    for kind in ("inlineData", "fileData"):
        if isinstance(media := part.get(kind), dict):
            media_type = text(media.get("mimeType"), f"{where}.{kind}.mimeType")
            name = media_type.partition("/")[0]
            source = {"type": "base64", "media_type": media_type, "data": media.get("data")}
            return "".join(reader.part({"type": name if name in MEDIA else "document", "source": source}, where))
    for kind in ("executableCode", "codeExecutionResult"):
        if isinstance(part.get(kind), dict):
            return reader.result(part[kind], where)
    kind = next((name for name in part if name not in ("thought", "thoughtSignature")), "part")
    return reader.item(kind)
