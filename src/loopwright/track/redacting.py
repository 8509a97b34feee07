"""Removes known secrets from logs and errors (S3).

A log record is redacted before any handler gets it. A LoopwrightError is redacted when it leaves the run, so whoever
catches it can show it as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from traceback import format_exception

from loopwright.config import Loaded
from loopwright.config.base import needs_of, sections
from loopwright.config.needs import Outside
from loopwright.config.problems import dotted
from loopwright.core.redaction import SHORTEST_SECRET, Redactor, names_a_secret
from loopwright.errors import LoopwrightError

LOGGERS = ("loopwright", "uvicorn.error", "asyncio")
"""Our logger, and loggers that repeat what our code raised. A filter sees only records that are sent to its own logger,
so our code never uses a child of the first one."""


log = logging.getLogger("loopwright")


def redactor_of(loaded: Loaded, *keys: str | None) -> Redactor:
    """A redactor that knows `keys` and the secrets of a config: the keys whose variables the config names, values that
    judgers and tools get under a name that suggests a secret, and secrets in the URLs of judgers."""
    config = loaded.config
    keys_of_config = {need.name for need in needs_of(config) if need.what is Outside.KEY}
    # These are pairs, because several judgers and tools may get different values under the same name.
    secrets = [
        (name, value) for name, value in loaded.secrets.items() if name in keys_of_config or names_a_secret(name)
    ]
    for place, section in sections(config):
        given = ((name, value) for name, value in section.named_values() if names_a_secret(name))
        secrets += [(f"{dotted(place)}: {name}", value) for name, value in given]
    for name, value in secrets:
        if len(value) < SHORTEST_SECRET:
            log.warning("%s has less than %d characters: logs and stored texts may show it", name, SHORTEST_SECRET)
    return Redactor((*(value for _, value in secrets), *(key for key in keys if key)))


@contextmanager
def redacting(redact: Redactor) -> Iterator[None]:
    """Inside this block, no log record of ours and no LoopwrightError that leaves the block shows a known secret."""

    def shorten(record: logging.LogRecord) -> bool:
        _redact_record(record, redact)
        return True

    with ExitStack() as stack:
        for logger in map(logging.getLogger, LOGGERS):
            logger.addFilter(shorten)
            stack.callback(logger.removeFilter, shorten)
        stack.enter_context(redacting_errors(redact))
        yield


@contextmanager
def redacting_errors(redact: Redactor) -> Iterator[None]:
    """Meanwhile no error of ours that leaves shows a known secret."""
    try:
        yield
    except LoopwrightError as error:
        redact_error(error, redact)
        raise


def redact_error(error: LoopwrightError, redact: Redactor) -> None:
    """Remove secrets from the error's texts. It keeps its type and its traceback."""
    error.message, error.remedy = redact(error.message), redact(error.remedy)
    error.args = (error.message,)
    error.facts = redact.value(error.facts)
    if notes := getattr(error, "__notes__", None):
        error.__notes__ = redact.value(notes)


def _redact_record(record: logging.LogRecord, redact: Redactor) -> None:
    said = record.getMessage()
    if (shown := redact(said)) is not said:
        record.msg, record.args = shown, ()
    if record.exc_info and record.exc_info[0] is not None:
        trace = "".join(format_exception(*record.exc_info)).rstrip("\n")
        if (shown := redact(trace)) is not trace:
            # Formatters write this text, if it is set, instead of formatting the exception.
            record.exc_text, record.exc_info = shown, None
