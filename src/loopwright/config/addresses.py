"""Addresses of servers, as settings hold them."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from urllib.parse import SplitResult, parse_qsl, urlsplit

from loopwright.config.problems import KeyPath, Problem


def address_problems(place: KeyPath, url: str, key_setting: str = "api_key_env") -> Iterator[Problem]:
    parts = _parts(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or not _is_plain(parts.netloc):
        yield Problem(place, f"{url!r} is no address", "write it as http://host:port/path or https://host/path")
    elif parts.username or parts.password:
        yield Problem(place, "holds a password", f"put it into an environment variable, and name that as {key_setting}")


def advertised_problems(place: KeyPath, url: str, key_setting: str = "api_key_env") -> Iterator[Problem]:
    """The problems of an address that others are told, so that they can reach a server of ours."""
    wrong = list(address_problems(place, url, key_setting))
    yield from wrong
    host = None if wrong else urlsplit(url).hostname
    if host is not None and not can_have_paths(url):
        yield Problem(
            place,
            f"{url!r} is no address to which others can add a path",
            "write it as http://host:port/path or https://host/path, in ASCII, without a query",
        )
    elif host is not None and is_everywhere(host):
        yield Problem(
            place,
            f"{url!r} is no address that others can ask: {host} only says where a server listens",
            "write the name or the address of this machine as the others see it",
        )


def can_have_paths(url: str) -> bool:
    """Whether a path can be added to an address, and others can use the result as it is."""
    parts = _parts(url)
    usable = parts is not None and parts.port != 0 and not (parts.query or parts.fragment)
    return usable and url.isascii() and _is_plain(url)


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
        address = ipaddress.ip_address(host)
    except ValueError:
        return _is_short_zero(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address.is_unspecified or (mapped is not None and mapped.is_unspecified)


def _is_short_zero(host: str) -> bool:
    """Whether `host` is another form of 0.0.0.0 that the system reads, such as 0."""
    try:
        return not any(socket.inet_aton(host.removesuffix(".")))
    except OSError:
        return False


def query_values(url: str) -> list[tuple[str, str]]:
    """The names and values in an address's query. Errors show the address, and some of the values may be keys."""
    _, _, query = url.partition("?")
    return parse_qsl(query)


def _is_plain(text: str) -> bool:
    return text.isprintable() and " " not in text


def _parts(url: str) -> SplitResult | None:
    if not _is_plain(url[:1]) or "\n" in url or "\r" in url or "\t" in url:
        # `urlsplit` removes these, and whoever asks there would send them.
        return None
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (reading the port checks it)
    except ValueError:
        return None
    return parts
