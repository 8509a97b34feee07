"""Imports the user's Python by path: `package.module:name`, or `file.py:name` relative to the config file.

A file is imported once per process, and its module has the same name in all processes. An object without a path, which
a Python program gave, is found by the text that stands for it (`config/objects.py`).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType

from loopwright.config.problems import nearest
from loopwright.errors import ConfigError

PACKAGE = str(Path(__file__).resolve().parents[1])

USER_MODULE = "loopwright_user_"
"""The prefix for names of modules that are imported from files."""

OBJECT = "object:"
"""The prefix of a path that stands for an object without an import path."""

Objects = Mapping[str, object]
"""The objects without an import path that a Python program gave, by the text that stands for each in the config."""

NO_OBJECTS: Objects = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SymbolPath:
    """Where a symbol lives. `file` is None when `place` names a module."""

    place: str
    name: str
    file: Path | None


def split_symbol(path: str, base: Path) -> SymbolPath:
    """Split a symbol's path, without looking at the disk."""
    place, colon, name = path.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise ConfigError(
            f"{path!r} does not name a Python object", remedy="write `file.py:name` or `package.module:name`"
        )
    return SymbolPath(place, name, base / place if place.endswith(".py") else None)


def is_object_name(path: str) -> bool:
    return path.startswith(OBJECT)


def no_such_object(path: str) -> ConfigError:
    """The error if a program opened the run with this object, and the present program did not give it."""
    return ConfigError(
        f"{path!r} is a Python object without an import path, which only the Python program that defines it can give",
        remedy="open the run from that program with loopwright.open_run; or put the function into a file, and name it "
        "as `file.py:name`",
    )


def load_symbol(path: str, base: Path, objects: Objects = NO_OBJECTS) -> object:
    """The object that `path` names: one of `objects`, or else an import. Relative files and modules start from
    `base`."""
    if path in objects:
        return objects[path]
    if is_object_name(path):
        raise no_such_object(path)
    symbol = split_symbol(path, base)
    module = _import_module(symbol.place, base) if symbol.file is None else _import_file(symbol.file)
    try:
        return getattr(module, symbol.name)
    except AttributeError:
        close = nearest(symbol.name, (name for name in vars(module) if not name.startswith("__")))
        raise ConfigError(
            f"{symbol.place} has no {symbol.name!r}",
            remedy=f"did you mean {symbol.place}:{close}?" if close else f"define {symbol.name} in {symbol.place}",
        ) from None


def user_line(error: BaseException) -> str:
    """`file.py:12: ZeroDivisionError: division by zero`: the innermost line that is neither ours nor the importer's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}: {type(error).__name__}: {error.msg}"
    reason = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((PACKAGE, "<frozen"))]
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}: {reason}" if own else reason


def _import_file(file: Path) -> ModuleType:
    file = file.resolve()
    name = f"{USER_MODULE}{hashlib.blake2b(str(file).encode(), digest_size=6).hexdigest()}_{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"{file}: there is no such file", remedy="Python files are named relative to the config file")
    module = importlib.util.module_from_spec(spec)
    let_import_from(file.parent)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _broken(file.name, error) from error
    return module


def _import_module(name: str, base: Path) -> ModuleType:
    let_import_from(base)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"there is no module {error.name!r}",
                remedy=f"install it into this environment, or name a file: {name.replace('.', '/')}.py",
            ) from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def let_import_from(folder: Path) -> None:
    """Make the folder's other modules importable, as for a script. The folder comes last in the path, so that it hides
    no installed package."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _broken(place: str, error: BaseException) -> ConfigError:
    return ConfigError(f"importing {place} failed at {user_line(error)}", remedy="fix that line, or what it needs")
