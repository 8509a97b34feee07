"""Sources of tasks (files, Python functions, generators), and the sampler that orders them. The content of a task does
not matter here."""

from loopwright.data.jsonl import JsonlSource
from loopwright.data.python import PythonSource
from loopwright.data.sampler import EpochSampler
from loopwright.data.sources import open_source

__all__ = ["EpochSampler", "JsonlSource", "PythonSource", "open_source"]
