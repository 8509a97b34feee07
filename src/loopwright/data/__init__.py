"""Tasks in: files, Python functions, and the sampler that orders them. What a task asks for is no concern here."""

from loopwright.data.jsonl import JsonlSource
from loopwright.data.python import PythonSource
from loopwright.data.sampler import EpochSampler
from loopwright.data.sources import open_source

__all__ = ["EpochSampler", "JsonlSource", "PythonSource", "open_source"]
