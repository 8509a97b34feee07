"""Loads a tokenizer without torch, because torch costs about 270 MB of memory in every process that imports it.

`AutoTokenizer` chooses the class of a tokenizer, and importing `AutoTokenizer` imports torch. The chosen class reads
its files without torch. So a process without torch asks a short-lived child process for the choice, or gets the class
from a process that knows it. In both cases the same class reads the same files, so the ids are the same.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError

from loopwright.core.own_command import own_command
from loopwright.errors import ModelError

CHOICE_SECONDS = 120
"""If the child process has not answered after this time, `AutoTokenizer` is imported in this process."""


class ModelSpec(Protocol):
    """What is needed to talk to a model. Its weights may be in another process."""

    @property
    def tokenizer(self) -> Any: ...

    @property
    def max_context(self) -> int:
        """How many tokens its context can hold."""
        ...


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """A tokenizer that another process can load: where its files are, and the class of transformers that reads them,
    as `module:name`. Without `kind`, the process that loads it asks for the class first, which takes seconds."""

    path: str
    kind: str | None = None

    @staticmethod
    def of(tokenizer: Any) -> TokenizerSource:
        """The source of a tokenizer that is loaded here."""
        path = Path(tokenizer.name_or_path)
        return TokenizerSource(str(path.resolve() if path.exists() else tokenizer.name_or_path), _kind(type(tokenizer)))

    def load(self) -> Any:
        return load_tokenizer(self.path, self.kind)


def load_tokenizer(source: str, kind: str | None = None) -> Any:
    """The tokenizer in a folder, or of a Hugging Face name. `kind` is its class, if that is known."""
    folder = Path(source)
    if folder.is_dir() and not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise ModelError(
            f"model folder {source!r} has no tokenizer",
            remedy="save it there too: AutoTokenizer.from_pretrained(...).save_pretrained(folder)",
        )
    if kind is None and "torch" not in sys.modules:
        kind = chosen_kind(source)
    if kind is not None:
        return read_pretrained(_class_of(kind), source, "tokenizer")
    from transformers import AutoTokenizer

    return read_pretrained(AutoTokenizer, source, "tokenizer")


def _class_of(kind: str) -> Any:
    """The class. No other one is used instead, because it might read the same files as other ids."""
    module, _, name = kind.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ModelError(
            f"the tokenizer's class {kind} is not in the transformers that is installed here",
            remedy="install the same version of transformers as the process that names it, such as the run",
        ) from error


def read_pretrained(factory: Any, source: str, what: str, **options: Any) -> Any:
    """Let `factory` read a model's files. Raises a ModelError that says what is wrong with them."""
    try:
        return factory.from_pretrained(source, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"cannot load the {what} of model {source!r}: {why}",
            remedy="model.path must be 'smollm2', a folder written by save_pretrained, or a Hugging Face name "
            "that is in the local cache or can be downloaded",
        ) from error


def chosen_kind(source: str) -> str | None:
    """The class that `AutoTokenizer` chooses, found by a child process. None if the child could not find it."""
    command = own_command("loopwright.models.tokenizer", source)
    try:
        child = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CHOICE_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        # AutoTokenizer then fails here in the same way, and its error is reported.
        return None
    return child.stdout.splitlines()[-1] if child.stdout else None


def _choose(source: str) -> str:
    """Let `AutoTokenizer` choose, but read no vocabulary: its last step is the chosen class' `from_pretrained`."""
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    PreTrainedTokenizerBase.from_pretrained = classmethod(lambda cls, *_, **__: cls)
    chosen = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    return _kind(chosen if isinstance(chosen, type) else type(chosen))


def _kind(chosen: type) -> str:
    return f"{chosen.__module__}:{chosen.__qualname__}"


if __name__ == "__main__":
    print(_choose(sys.argv[1]))
