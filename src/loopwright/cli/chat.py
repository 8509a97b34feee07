"""`loopwright chat`: talk to the model of a run."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Protocol

import typer

from loopwright.cli.models import models_folder
from loopwright.cli.runs import RunPath, existing_run
from loopwright.cli.tokens import visible
from loopwright.ports import Reply
from loopwright.runs.run_folder import RunFolder
from loopwright.types import FinishReason, Message

RESET, QUIT = "/reset", "/quit"


class Partner(Protocol):
    """The model that answers."""

    async def reply(self, messages: Sequence[Message], *, temperature: float, max_new_tokens: int) -> Reply: ...


def chat(
    run: RunPath,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")] = 0.7,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="The longest reply.")] = 256,
    once: Annotated[str | None, typer.Option("--once", help="Say this, print the reply and leave.")] = None,
) -> None:
    """Talk to the trained model. It remembers the conversation."""
    asyncio.run(_chat(existing_run(run), temperature, max_new_tokens, once))


async def _chat(folder: RunFolder, temperature: float, max_new_tokens: int, once: str | None) -> None:
    from loopwright.build import open_chat

    async with open_chat(folder, cache=models_folder()) as partner:
        talk = Conversation(partner, temperature, max_new_tokens)
        if once is not None:
            typer.echo(visible((await talk.say(once)).text))
            return
        _note(f"Talking to the model of {folder.path}. {RESET} forgets the conversation, {QUIT} or Ctrl-D leaves.")
        await _converse(talk)


class Conversation:
    """A dialogue and its messages. A question whose reply failed is not kept."""

    def __init__(self, partner: Partner, temperature: float, max_new_tokens: int) -> None:
        self._partner = partner
        self._temperature = temperature
        self._max_new_tokens = max_new_tokens
        self._messages: tuple[Message, ...] = ()

    async def say(self, text: str) -> Reply:
        asked = (*self._messages, {"role": "user", "content": text})
        reply = await self._partner.reply(asked, temperature=self._temperature, max_new_tokens=self._max_new_tokens)
        self._messages = (*asked, reply.message)
        return reply

    def forget(self) -> None:
        self._messages = ()


async def _converse(talk: Conversation) -> None:
    while (line := _read_line()) is not None and line != QUIT:
        if line == RESET:
            talk.forget()
            _note("The conversation is forgotten.")
        elif line.startswith("/"):
            _note(f"There is no command {line}; there are {RESET} and {QUIT}.")
        elif line:
            reply = await talk.say(line)
            typer.echo(visible(reply.text))
            if reply.finish is FinishReason.LENGTH:
                _note("(cut: the reply reached its limit; see --max-new-tokens)")


def _read_line() -> str | None:
    """The next line, or None at the end of the input.

    Nothing else runs meanwhile, so this may block the event loop. The loop's own handler of Ctrl-C would not end the
    wait, so Python's usual handler is set for that time.
    """
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except (EOFError, KeyboardInterrupt):
        _note("")
        return None
    finally:
        signal.signal(signal.SIGINT, previous)


def _note(text: str) -> None:
    """Print a message of ours, so that it looks different from the model's."""
    typer.secho(text, dim=True, err=True)
