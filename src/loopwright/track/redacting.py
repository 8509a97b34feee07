"""What a reader of logs and errors must not see (S3).

A record is redacted before the first handler has it, whoever installed the handlers. An error of ours is redacted as it
leaves, so that whoever catches it may show it as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from traceback import format_exception
from urllib.parse import parse_qsl

from loopwright.config import EndpointConfig, HttpJudgerConfig, LlmJudgerConfig, Loaded, McpToolsConfig, ToolAgent
from loopwright.core.redaction import SHORTEST_SECRET, Redactor, names_a_secret
from loopwright.errors import LoopwrightError

LOGGERS = ("loopwright", "uvicorn.error", "asyncio")
"""Ours, and those that repeat what our code raised. A filter sees only what its own logger is told, so nothing of ours
logs to a logger below the first."""


log = logging.getLogger("loopwright")


def redactor_of(loaded: Loaded, *keys: str | None) -> Redactor:
    """Knows `keys` and the secrets of a config: the keys whose variables it names, all that its judgers and tools are
    given under a name that says so, and what the addresses of judgers hold."""
    config = loaded.config
    named = {judger.api_key_env for judger in config.judgers.values() if isinstance(judger, EndpointConfig)}
    # Pairs: several judgers and tools may be given something under the same name.
    secrets = [(name, value) for name, value in loaded.secrets.items() if name in named or names_a_secret(name)]
    for name, judger in config.judgers.items():
        if isinstance(judger, HttpJudgerConfig | LlmJudgerConfig):
            url = judger.url if isinstance(judger, HttpJudgerConfig) else judger.base_url
            secrets += [(f"judgers.{name}: {part}", value) for part, value in _in_url(url)]
    for _, task_set in config.all_task_sets():
        for tool in task_set.agent.tools if isinstance(task_set.agent, ToolAgent) else ():
            given = tool.env if isinstance(tool, McpToolsConfig) else {}
            secrets += [(name, value) for name, value in given.items() if names_a_secret(name)]
    for name, value in secrets:
        if len(value) < SHORTEST_SECRET:
            log.warning("%s has less than %d characters: logs and stored texts may show it", name, SHORTEST_SECRET)
    return Redactor((*(value for _, value in secrets), *(key for key in keys if key)))


def _in_url(url: str) -> Iterator[tuple[str, str]]:
    """The keys that an address holds: errors repeat it. An address with a password is refused with its config."""
    _, _, query = url.partition("?")
    yield from ((name, value) for name, value in parse_qsl(query) if names_a_secret(name))


@contextmanager
def redacting(redact: Redactor) -> Iterator[None]:
    """Meanwhile no log record of ours, and no error of ours that leaves, shows a known secret."""

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
    """The error keeps its type and its traceback, and loses the secrets in its words."""
    error.message, error.remedy = redact(error.message), redact(error.remedy)
    error.args = (error.message,)
    error.facts = redact.value(error.facts)


def _redact_record(record: logging.LogRecord, redact: Redactor) -> None:
    said = record.getMessage()
    if (shown := redact(said)) is not said:
        record.msg, record.args = shown, ()
    if record.exc_info and record.exc_info[0] is not None:
        trace = "".join(format_exception(*record.exc_info)).rstrip("\n")
        if (shown := redact(trace)) is not trace:
            # Formatters write the text, if there is one, and do not ask the exception.
            record.exc_text, record.exc_info = shown, None
