"""Keys of servers (S3): made per run, kept in files that only their owner can read, never on a command line."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from loopwright.core.redaction import OWN_KEY_PREFIX
from loopwright.errors import ConfigError

KEY_BYTES = 32


def new_key() -> str:
    """A key that nobody can guess, that every header can carry, and that texts can be searched for by its form."""
    return OWN_KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def read_key(file: Path) -> str:
    """The key in a file that nobody else can read."""
    try:
        mode, key = file.stat().st_mode, file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the key file {file} cannot be read: {error}", remedy="name a file with one key") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"the key file {file} is open to other users (mode {stat.S_IMODE(mode):o})",
            remedy=f"chmod 600 {file}, and make a new key if others may have read it",
        )
    return check_key(key, f"the key file {file}")


def write_key(file: Path, key: str) -> None:
    """Keep a key in a new file that nobody else can read."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as opened:
            opened.write(f"{key}\n")
    except OSError as error:
        raise ConfigError(f"the key file {file} cannot be written: {error}", remedy="name another place") from error


def check_key(key: str, where: str) -> str:
    """The key as it is, unless no header could carry it."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"{where} holds no usable key",
            remedy="use one line of printable ASCII, such as `openssl rand -hex 32` gives",
        )
    return key
