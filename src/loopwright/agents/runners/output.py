"""Keeps the beginning and the end of a long output. The middle is counted and dropped, so a program may write as much
as it likes."""

from __future__ import annotations

from collections import deque

HEAD_SHARE = 4
"""One part in so many of what is kept is the beginning: errors are at the end."""


class BoundedOutput:
    """Takes bytes as they come, and keeps at most `limit` of them."""

    def __init__(self, limit: int) -> None:
        self._head_left = limit // HEAD_SHARE
        self._tail_size = limit - limit // HEAD_SHARE
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.total = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        if self._head_left:
            part, chunk = chunk[: self._head_left], chunk[self._head_left :]
            self._head += part
            self._head_left -= len(part)
        if chunk:
            self._tail.append(chunk[-self._tail_size :])
            self._tail_bytes += len(self._tail[-1])
        while self._tail_bytes - len(self._tail[0] if self._tail else b"") >= self._tail_size:
            self._tail_bytes -= len(self._tail.popleft())

    @property
    def text(self) -> str:
        """The kept output. Bytes that are no UTF-8 are replaced."""
        tail = b"".join(self._tail)[-self._tail_size :]
        dropped = self.total - len(self._head) - len(tail)
        between = f"\n[... {dropped:,} bytes left out ...]\n".encode() if dropped else b""
        return (bytes(self._head) + between + tail).decode("utf-8", "replace")

    def last_lines(self, characters: int = 1000) -> str:
        """The end of the output, for messages."""
        text = self.text.strip()
        return text if len(text) <= characters else f"...{text[-characters:]}"
