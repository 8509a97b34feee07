"""An agent that is a function of the user's, written against an SDK and nothing of ours.

It gets the task, a base URL and a key, and talks to the model as it would to OpenAI or Anthropic. The tokens are
recorded where it talks to: the function need not return anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import isawaitable, iscoroutinefunction, signature
from pathlib import Path
from typing import Any

from loopwright.agents.transcript import transcript_of
from loopwright.config.imports import NO_OBJECTS, Objects, load_symbol
from loopwright.errors import ConfigError
from loopwright.ports import Policy, ServedPolicy
from loopwright.types import Message, Task
from loopwright.workers.own_thread import in_own_thread

SHAPE = "async def agent(task, base_url, api_key)"


class CallableLoop:
    """An `AgentLoop`. A plain function runs in a thread, so that it may use an SDK that blocks."""

    def __init__(
        self, function: Callable[..., Any], args: Mapping[str, Any] | None = None, *, max_tokens: int | None = None
    ) -> None:
        self._function = function
        self._args = dict(args or {})
        self._max_tokens = max_tokens

    async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
        """The transcript is what the function returns: messages, or a text as the last word after what was recorded, or
        None for what was recorded."""
        if not isinstance(policy, ServedPolicy):
            raise ConfigError(
                f"an agent of kind callable cannot be run with a {type(policy).__name__}",
                remedy="give it a policy that is served by a gateway",
            )
        async with policy.endpoint(max_tokens=self._max_tokens) as endpoint:
            said = await self._call(task, endpoint.base_url, endpoint.api_key)
        recorded = policy.transcript
        if said is None:
            return recorded
        if isinstance(said, str):
            return _ended_with(said, recorded or task.messages)
        return transcript_of(_plain(said), verb="returned")

    async def _call(self, task: Task, base_url: str, api_key: str) -> Any:
        if iscoroutinefunction(self._function):
            return await self._function(task, base_url, api_key, **self._args)
        call = partial(self._function, task, base_url, api_key, **self._args)
        said = await in_own_thread(call, "loopwright-agent")
        return await said if isawaitable(said) else said


def _ended_with(answer: str, recorded: Sequence[Message]) -> Sequence[Message]:
    last = recorded[-1] if recorded else {}
    if last.get("role") == "assistant" and last.get("content") == answer:
        return recorded
    return [*recorded, {"role": "assistant", "content": answer}]


def _plain(said: object) -> object:
    """Messages as dicts: an SDK's replies stand in a conversation as the objects that they are."""
    if not isinstance(said, list | tuple):
        return said
    return [one.model_dump(mode="json", exclude_none=True) if hasattr(one, "model_dump") else one for one in said]


def load_callable(
    path: str, base: Path, args: Mapping[str, Any], max_tokens: int | None, objects: Objects = NO_OBJECTS
) -> CallableLoop:
    """The loop round the function at `path`, which must be callable with a task, a URL, a key and `args`."""
    function = load_symbol(path, base, objects)
    if not callable(function):
        raise ConfigError(
            f"agent path {path!r} names {function!r:.80}, which cannot be called", remedy=f"name a function `{SHAPE}`"
        )
    try:
        signature(function).bind(None, "", "", **args)
    except TypeError as error:
        raise ConfigError(
            f"agent {path!r} cannot be called with a task, a URL, a key and args {dict(args)}: {error}",
            remedy=f"write it as `{SHAPE}` with a parameter for each of agent.args",
        ) from error
    return CallableLoop(function, args, max_tokens=max_tokens)
