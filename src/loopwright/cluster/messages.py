"""What Ray says in this process: its log records, and its notes about workers and nodes, which it would print."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

LOGGERS = ("ray", "ray._private")
"""`ray.init` removes the handlers of the first one, and then says something through a child of the second one."""


class _Handler(logging.Handler):
    def __init__(self, say: Callable[[str], object]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(self.format(record))


@contextmanager
def told(say: Callable[[str], object]) -> Iterator[None]:
    """Meanwhile `say` gets everything that Ray says here, and nothing of it reaches the screen."""
    from ray._private import worker

    handler = _Handler(say)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(of_ray) for of_ray in LOGGERS]
    before = [(logger.propagate, list(logger.handlers)) for logger in loggers]
    printed = worker.print_to_stdstream

    def say_lines(data: Mapping[str, Any], ignore_prefix: bool) -> None:
        for line in data["lines"]:
            say(f"({data['pid']}) {line}")

    # Ray has no setting for these notes. It looks this function up whenever it has one.
    worker.print_to_stdstream = say_lines
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        worker.print_to_stdstream = printed
        for logger, (propagate, handlers) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
