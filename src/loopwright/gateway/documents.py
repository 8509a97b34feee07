"""Text documents that come as files, encoded in base64: their text is read like any other text."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

TEXT_TYPES = frozenset(
    {"application/json", "application/xml", "application/yaml", "application/toml", "application/javascript"}
)
"""Media types that are text, beside all that begin with `text/`."""
TEXT_ENDINGS = frozenset(
    {
        *(".txt", ".md", ".rst", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".html", ".yaml", ".yml", ".toml", ".ini"),
        *(".log", ".py", ".js", ".ts", ".c", ".h", ".cpp", ".java", ".go", ".rs", ".sh", ".sql", ".tex", ".patch"),
    }
)
"""The endings of files whose media type nobody says."""


def is_text(media_type: str, filename: str = "") -> bool:
    kind = media_type.partition(";")[0].strip().lower()
    if kind in ("", "application/octet-stream"):
        return PurePosixPath(filename).suffix.lower() in TEXT_ENDINGS
    return kind.startswith("text/") or kind in TEXT_TYPES


def document_text(part: Mapping[str, Any]) -> str | None:
    """The text of a part that holds a file, with the file's name. None if it is not there, or is no text."""
    inner = part.get("file")
    said = inner if isinstance(inner, dict) else part
    source = part.get("source")
    if isinstance(source, dict):
        media_type, data, name = source.get("media_type"), source.get("data"), part.get("title")
    else:
        media_type, data, name = "", said.get("file_data"), said.get("filename")
    if not isinstance(data, str):
        return None
    if data.startswith("data:"):
        head, _, data = data.removeprefix("data:").partition(",")
        media_type = head.removesuffix(";base64")
    name = name if isinstance(name, str) else ""
    if not is_text(media_type if isinstance(media_type, str) else "", name):
        return None
    try:
        text = base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    return f"{name}\n{text}" if name else text
