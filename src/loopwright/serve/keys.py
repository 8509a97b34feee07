"""Keys of servers (S3). They are made per run, are kept in files that only their owner can read, and are never on a
command line."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from loopwright.core.redaction import OWN_KEY_PREFIX
from loopwright.errors import ConfigError

KEY_BYTES = 32


def new_key() -> str:
    """A random key that fits into an HTTP header. Its form is fixed, so it can be found in texts."""
    return OWN_KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def read_key(file: Path) -> str:
    """Read the key from a file. The file must not be readable by other users."""
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
    """Write a key to a new file that other users cannot read."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as opened:
            opened.write(f"{key}\n")
    except OSError as error:
        raise ConfigError(f"the key file {file} cannot be written: {error}", remedy="name another place") from error


def check_key(key: str, where: str) -> str:
    """The key unchanged. Raises if it does not fit into an HTTP header."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"{where} holds no usable key",
            remedy="use one line of printable ASCII, such as `openssl rand -hex 32` gives",
        )
    return key
