"""Tells whether two folders hold the same model, without torch and without reading all of it.

The digest covers the config, and of each weights file its size, the header of safetensors (names, shapes and types of
all tensors) and a sample of its bytes. Two trainings of one model differ nearly everywhere, so a sample shows it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from loopwright.config.model_folders import MODEL_CONFIG, weight_files

NOT_THE_MODEL = frozenset({"transformers_version", "_name_or_path"})
"""What a config tells of its own history."""
LONGEST_HEADER = 100_000_000
SAMPLES, SAMPLE_BYTES = 256, 4096
"""How many pieces of a weights file are read, evenly spread, and how long each is."""


def model_digest(folder: Path) -> str | None:
    """The digest, or None if no folder with a model is there."""
    config, files = folder / MODEL_CONFIG, weight_files(folder)
    if not files or not config.is_file():
        return None
    told = {name: value for name, value in json.loads(config.read_bytes()).items() if name not in NOT_THE_MODEL}
    return _digest(json.dumps(told, sort_keys=True), files)


def combined_digest(below: str, told: str, file: Path) -> str:
    """The digest of what `file`, of which `told` is known, makes of something that has the digest `below`."""
    return _digest(f"{below} {told}", [file])


def _digest(told: str, files: Iterable[Path]) -> str:
    digest = hashlib.sha256(told.encode())
    for file in files:
        digest.update(f"\n{file.name} {file.stat().st_size}\n".encode())
        for piece in _pieces(file):
            digest.update(piece)
    return digest.hexdigest()


def _pieces(file: Path) -> Iterator[bytes]:
    size = file.stat().st_size
    with file.open("rb") as opened:
        if file.suffix == ".safetensors":
            length = opened.read(8)
            yield length + opened.read(min(int.from_bytes(length, "little"), LONGEST_HEADER))
        step = max(size // SAMPLES, SAMPLE_BYTES)
        for start in range(opened.tell(), size, step):
            opened.seek(start)
            yield opened.read(SAMPLE_BYTES)
