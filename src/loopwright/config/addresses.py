"""Addresses of servers, as settings hold them."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import SplitResult, parse_qsl, urlsplit

from loopwright.config.problems import KeyPath, Problem


def address_problems(place: KeyPath, url: str) -> Iterator[Problem]:
    parts = _parts(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        yield Problem(place, f"{url!r} is no address", "write it as http://host:port/path or https://host/path")
    elif parts.username or parts.password:
        yield Problem(place, "holds a password", "put it into an environment variable, and name that as api_key_env")


def query_values(url: str) -> list[tuple[str, str]]:
    """The names and values in an address's query. Errors show the address, and some of the values may be keys."""
    _, _, query = url.partition("?")
    return parse_qsl(query)


def _parts(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (reading the port checks it)
    except ValueError:
        return None
    return parts
