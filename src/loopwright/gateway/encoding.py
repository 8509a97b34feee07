"""Reads compressed bodies, within the same size limit as other bodies."""

from __future__ import annotations

import zlib

from loopwright.gateway.refusals import Code, invalid, refused
from loopwright.serve.guard import MAX_BODY_BYTES

READABLE = frozenset({"gzip", "x-gzip", "deflate"})
BY_ITS_HEADER = 32 + zlib.MAX_WBITS
"""With this value zlib finds out itself which of the two formats a body has."""


def decoded(body: bytes, encoding: str, most: int = MAX_BODY_BYTES) -> bytes:
    """The body as it was before `encoding`, the value of its header, was applied."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in READABLE:
        raise refused(
            Code.ENCODING, f"a body in {encoding!r:.40} cannot be read here", remedy="send it in gzip, or as it is"
        )
    reader = zlib.decompressobj(BY_ITS_HEADER)
    try:
        whole = reader.decompress(body, most + 1)
    except zlib.error as error:
        raise _broken(encoding, str(error)) from error
    if len(whole) > most:
        raise refused(Code.TOO_LARGE, f"a body may have {most:,} bytes at most", remedy="send less at a time")
    if not reader.eof:
        raise _broken(encoding, "it ends too early")
    return whole


def _broken(encoding: str, why: str) -> Exception:
    return invalid("body", f"it is no valid {encoding} ({why})", remedy="send it as it is")
