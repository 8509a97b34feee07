"""Reads compressed bodies, within the same size limit as other bodies."""

from __future__ import annotations

import zlib

from loopwright.gateway.refusals import Code, invalid, refused
from loopwright.serve.guard import MAX_BODY_BYTES

READABLE = frozenset({"gzip", "x-gzip", "deflate"})
ZSTD = "zstd"
LARGEST_WINDOW = 1 << 27
"""In bytes. A zstd body that needs more memory to be read is refused."""
MORE = "more follows after its end; send it in one piece"
BY_ITS_HEADER = 32 + zlib.MAX_WBITS
"""With this value zlib finds out itself which of the two formats a body has."""


def decoded(body: bytes, encoding: str, most: int = MAX_BODY_BYTES) -> bytes:
    """The body as it was before `encoding`, the value of its header, was applied."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding == ZSTD:
        return _zstd_decoded(body, most)
    if encoding not in READABLE:
        raise _unknown(encoding)
    reader = zlib.decompressobj(BY_ITS_HEADER)
    try:
        whole = reader.decompress(body, most + 1)
    except zlib.error as error:
        raise _broken(encoding, str(error)) from error
    if len(whole) > most:
        raise _too_large(most)
    if not reader.eof:
        raise _broken(encoding, "it ends too early")
    if reader.unused_data:
        raise _broken(encoding, MORE)
    return whole


def _zstd_decoded(body: bytes, most: int) -> bytes:
    try:
        import zstandard
    except ModuleNotFoundError as error:
        raise _unknown(ZSTD) from error
    reader = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
    try:
        with reader.stream_reader(body) as stream:
            whole = stream.read(most + 1)
        if len(whole) > most:
            raise _too_large(most)
        # A stream that ends too early is no error for the reader above; now its size is known to be small.
        once = reader.decompressobj()
        once.decompress(body)
    except zstandard.ZstdError as error:
        raise _broken(ZSTD, str(error)) from error
    if not once.eof:
        raise _broken(ZSTD, "it ends too early")
    if once.unused_data:
        raise _broken(ZSTD, MORE)
    return whole


def _unknown(encoding: str) -> Exception:
    return refused(
        Code.ENCODING, f"a body in {encoding!r:.40} cannot be read here", remedy="send it in gzip, or as it is"
    )


def _too_large(most: int) -> Exception:
    return refused(Code.TOO_LARGE, f"a body may have {most:,} bytes at most", remedy="send less at a time")


def _broken(encoding: str, why: str) -> Exception:
    return invalid("body", f"it is no valid {encoding} ({why})", remedy="send it as it is")
