"""The user's files on the nodes of a cluster: their modules, the modules beside those, and files that a config names.

The invariant: a part on an actor imports the code that the driver had when the run started. A node that sees the
driver's own folder, or one with the same files, uses it where it is, as long as the files are the same. Any other actor
gets a copy with the start call: one on another node, and one that is started after files were edited. A file that an
actor can get in neither way is refused by name before the part is opened.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import logging
import os
import zipfile
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle

from loopwright.cluster.file_copy import copied
from loopwright.cluster.host import Opening
from loopwright.cluster.remote_host import pickled
from loopwright.config.imports import let_import_from, user_line
from loopwright.errors import ConfigError

log = logging.getLogger("loopwright")

MAX_BYTES = 64 * 2**20
"""How large the files may be that are sent to a node."""
MAX_SEEN = 50_000
"""How many files are looked at below the folder."""
NOT_THE_USERS = frozenset({"__pycache__", "node_modules", "site-packages"})
OF_A_RUN = frozenset({"config.yaml", "id", "lock"})
"""The files by which a run folder is known."""

OpeningAt = Callable[[Path], AbstractAsyncContextManager[Any]]
"""Opens a part whose files are in a folder. It is pickled, as an `Opening` is."""


@dataclass(frozen=True, slots=True)
class UserFiles:
    """The files of a config in the folder `base`, on the machine of the driver. Those below it are in `digests`; those
    outside of it are named with `..` (`beside`) or absolutely (`absolute`), and are never copied. `content` refers to a
    zip file with those below; if they cannot be copied, `refusal` says why."""

    base: Path
    identity: tuple[str, int, int] | None
    digests: dict[str, str]
    beside: dict[str, str]
    absolute: dict[str, str]
    content: Any
    refusal: str


def hosted(opening: OpeningAt, files: UserFiles, what: str) -> Opening:
    """An opening for actors of any node. `opening` gets the folder in which the actor has the user's files. `what`
    names the part in errors. Raises ConfigError if it cannot be sent to an actor."""
    # Pickled by itself: its objects may be of modules that the actor finds among the files only.
    return partial(_open_with_files, pickled(opening, what), files, what)


async def user_files(base: Path, named: Collection[str] = ()) -> UserFiles:
    """All Python files below `base`, outside of hidden folders, environments and run folders; and those that are
    `named`, relative to `base`. Raises ConfigError for a named file that does not exist."""
    read = await asyncio.to_thread(_read, base, named)
    return UserFiles(
        read.base,
        _identity(read.base),
        read.digests,
        read.beside,
        read.absolute,
        ray.put(read.packed),
        _refusal(read),
    )


@asynccontextmanager
async def _open_with_files(opening: bytes, files: UserFiles, what: str) -> AsyncIterator[Any]:
    """Runs on the actor."""
    async with files_here(files) as base:
        let_import_from(base)
        try:
            open_part: OpeningAt = cloudpickle.loads(opening)
        except Exception as error:  # the user's objects may fail in whatever way
            raise ConfigError(
                f"{what} cannot be read on an actor: {user_line(error)}",
                remedy="put what it needs into a file beside the config file, or install it on every node",
            ) from error
        async with open_part(base) as part:
            yield part


@asynccontextmanager
async def files_here(files: UserFiles) -> AsyncIterator[Path]:
    """The folder of the files on this node: that of the driver, one with the same files, or a copy."""
    node = ray.util.get_node_ip_address()
    is_drivers = files.identity is not None and _identity(files.base) == files.identity
    for names in (files.absolute, {**files.digests, **files.beside}):
        if differing := await asyncio.to_thread(_differing, files.base, names):
            break
    else:
        yield files.base
        return
    if names is files.absolute or files.beside or files.refusal:
        raise _refused(files, node, differing[0], is_drivers)
    if is_drivers:
        log.warning("%s: edited after the run started; this actor has the files as they were", ", ".join(differing))
    packed = await files.content
    with copied(packed, files.base) as folder:
        yield folder


def _refused(files: UserFiles, node: str, differing: str, is_drivers: bool) -> ConfigError:
    """Why an actor on `node` cannot get the files. One of them is `differing` there."""
    outside = differing if differing in files.absolute else next(iter(files.beside), "")
    if is_drivers:
        where = f"{differing} is not as it was when the run started"
    else:
        where = f"{outside or differing} is not on node {node} as the driver has it"
    if not outside:
        return ConfigError(
            f"{where}, and the files of {files.base} cannot be copied: {files.refusal}",
            remedy="move the config and its files into a folder of their own, or onto a disk that all nodes share",
        )
    others = f", not {outside}" if outside not in where else ""
    return ConfigError(
        f"{where}, and only files below {files.base} are copied{others}",
        remedy="put it below that folder and name it relative to it, or onto a disk that all nodes share",
    )


@dataclass(slots=True)
class _Read:
    """What was read below `base`. `sizes` holds the size of each file that is copied."""

    base: Path
    digests: dict[str, str]
    beside: dict[str, str]
    absolute: dict[str, str]
    sizes: dict[str, int]
    seen: int
    packed: bytes = b""


def _read(base: Path, named: Collection[str]) -> _Read:
    base = base.absolute()
    read = _Read(base, {}, {}, {}, {}, 0)
    inside = dict[str, Path]()
    for name in named:
        file = base / name
        if not file.is_file():
            raise ConfigError(
                f"there is no file {file}, which the config names", remedy="paths are relative to the config file"
            )
        if Path(name).is_absolute():
            read.absolute[name] = _digest(file)
        elif ".." in Path(name).parts:
            read.beside[name] = _digest(file)
        else:
            inside[Path(name).as_posix()] = file
    needed = set(inside)
    for file in _python_files(base, read):
        inside[file.relative_to(base).as_posix()] = file
    for name, file in inside.items():
        try:
            read.digests[name], read.sizes[name] = _digest(file), file.stat().st_size
        except OSError:
            # It is gone meanwhile, or another user's. Only what the config names is sure to be needed.
            if name in needed:
                raise
    if not _refusal(read):
        read.packed = _packed({name: inside[name] for name in read.digests})
    return read


def _packed(files: Mapping[str, Path]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, file in files.items():
            archive.writestr(name, file.read_bytes())
    return packed.getvalue()


def _python_files(base: Path, read: _Read) -> Iterator[Path]:
    for place, folders, names in os.walk(base, followlinks=True):
        folder = Path(place)
        if folder != base and (set(names) >= OF_A_RUN or "pyvenv.cfg" in names):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if _may_have_modules(folder / name))
        read.seen += len(names)
        if read.seen > MAX_SEEN:
            return
        modules = (folder / name for name in sorted(names) if name.endswith(".py") and _is_text(name))
        yield from (file for file in modules if file.is_file())


def _may_have_modules(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name in NOT_THE_USERS or not _is_text(folder.name):
        return False
    # A linked package is imported like any other. Other links may lead to folders of data, or back to one above.
    return not folder.is_symlink() or ((folder / "__init__.py").is_file() and not _leads_up(folder))


def _leads_up(link: Path) -> bool:
    return link.parent.resolve().is_relative_to(link.resolve())


def _is_text(name: str) -> bool:
    """Whether the name can be imported, and be in a zip file: names on a disk are bytes."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _refusal(read: _Read) -> str:
    """Why the files cannot be copied. Empty if they can."""
    if read.seen > MAX_SEEN:
        return f"there are more than {MAX_SEEN:,} files below it"
    total = sum(read.sizes.values())
    if total <= MAX_BYTES:
        return ""
    largest = sorted(read.sizes, key=lambda name: -read.sizes[name])[:3]
    shown = ", ".join(f"{name} ({read.sizes[name] / 2**20:,.1f} MiB)" for name in largest)
    return f"they are larger than {MAX_BYTES >> 20} MiB in all; the largest are {shown}"


def _differing(base: Path, digests: Mapping[str, str]) -> list[str]:
    """The files that are not there, or not the same."""

    def is_same(name: str, digest: str) -> bool:
        try:
            return _digest(base / name) == digest
        except OSError:
            return False

    return [name for name, digest in digests.items() if not is_same(name, digest)]


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _identity(folder: Path) -> tuple[str, int, int] | None:
    """The same for two processes if they see the same folder of the same machine. None if that cannot be told."""
    try:
        status, boot = folder.stat(), Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
    except OSError:
        return None
    return boot.strip(), status.st_dev, status.st_ino
