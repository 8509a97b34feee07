"""Addresses of servers, as settings hold them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from urllib.parse import SplitResult, parse_qsl, urlsplit

from loopwright.config.problems import KeyPath, Problem


def address_problems(place: KeyPath, url: str, key_setting: str = "api_key_env") -> Iterator[Problem]:
    parts = _parts(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        yield Problem(place, f"{url!r} is no address", "write it as http://host:port/path or https://host/path")
    elif parts.username or parts.password:
        yield Problem(place, "holds a password", f"put it into an environment variable, and name that as {key_setting}")


def advertised_problems(place: KeyPath, url: str, key_setting: str = "api_key_env") -> Iterator[Problem]:
    """The problems of an address that others are told, so that they can reach a server of ours."""
    wrong = list(address_problems(place, url, key_setting))
    yield from wrong
    host = None if wrong else urlsplit(url).hostname
    if host is not None and is_everywhere(host):
        yield Problem(
            place,
            f"{url!r} is no address that others can ask: {host} only says where a server listens",
            "write the name or the address of this machine as the others see it",
        )


def host_of(url: str) -> str | None:
    """The host of an address. None if it has none."""
    parts = _parts(url)
    return None if parts is None else parts.hostname


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that is bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_everywhere(host: str) -> bool:
    """Whether a server that is bound to `host` listens at all addresses of its machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


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
