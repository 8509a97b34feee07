"""A scripted engine behind `loopwright engine`'s routes, so that a whole run can train with answers from a script.

In a test: `async with serve_scripted(engine, card) as url`. As a process, which needs no torch and prints one line of
JSON with its port when it is ready:

    python -m loopwright.testing.scripted_server SCRIPT.json [--host HOST] [--port PORT] [--key-file FILE]

    {"model": "models/tiny",          the folder or name whose tokenizer encodes the answers; the run has the same
     "max_context": 1024,             in tokens; without it, what the folder's config.json says
     "seconds": 0.0,                  how long an answer takes
     "replies": [{"when": "2+2", "say": ["4", "5"]},    the first that fits; several answers take turns
                 {"say": "I do not know."}]}            without `when`, it fits every prompt

`when` is a text that the prompt holds, as the model sees it. Instead of `replies`, `"answers": "file.py:function"`
names a Python function from the prompt's text to the answer's; it is found relative to the script. Weights are accepted
and not computed with: every token has the same logprob, and the version that was loaded last.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loopwright.config import load_symbol
from loopwright.engines.http.model_card import ModelCard
from loopwright.engines.http.server import engine_app
from loopwright.errors import ConfigError, RefusedError
from loopwright.models.tokenizer import load_tokenizer
from loopwright.serve.keys import read_key
from loopwright.serve.listen import listening
from loopwright.testing.scripted import ScriptedEngine
from loopwright.types import GenerateRequest

SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class ScriptedReply:
    """What is said to a prompt that holds `when`. Several texts take turns."""

    say: Sequence[str]
    when: str = ""


class Replies:
    """A function from the prompt's text to the answer's: the first reply that fits."""

    def __init__(self, replies: Sequence[ScriptedReply]) -> None:
        self._replies = replies
        self._said: Counter[int] = Counter()

    def __call__(self, prompt: str) -> str:
        for number, reply in enumerate(self._replies):
            if reply.when in prompt:
                self._said[number] += 1
                return reply.say[(self._said[number] - 1) % len(reply.say)]
        raise RefusedError(
            f"no reply of the script fits the prompt that ends in {prompt[-SHOWN_CHARACTERS:]!r}",
            remedy="add a reply without `when` at the end",
            status=400,
        )


def text_engine(answer: Callable[[str], str], tokenizer: Any, *, seconds: float = 0.0) -> ScriptedEngine:
    """A scripted engine that answers text with text. Each answer ends with the tokenizer's end of a turn."""

    def answered(request: GenerateRequest) -> tuple[int, ...]:
        text = answer(tokenizer.decode(request.prompt_ids))
        return (*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id)

    return ScriptedEngine(answered, seconds=(lambda request: seconds) if seconds else None)


@asynccontextmanager
async def serve_scripted(
    engine: ScriptedEngine, card: ModelCard, *, host: str = "127.0.0.1", port: int = 0, key: str | None = None
) -> AsyncIterator[str]:
    """Serve the engine, and give its URL. `card` names the model whose tokenizer the run has."""
    async with listening(
        engine_app(engine, card=replace(card, computes=False)), host=host, port=port, key=key
    ) as bound:
        yield f"http://{host}:{bound}"


def read_script(file: Path) -> tuple[ScriptedEngine, ModelCard]:
    """The engine and the model of a script."""
    try:
        script = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the script {file} cannot be read: {error}", remedy="write one JSON object") from error
    match script:
        case {"model": str(model), "replies": [*replies]}:
            answer: Callable[[str], str] = Replies([_reply(one) for one in replies])
        case {"model": str(model), "answers": str(path)}:
            answer = _function(path, file.parent)
        case _:
            raise _malformed("it needs `model`, and `replies` or `answers`")
    folder = file.parent / model
    source = str(folder.resolve()) if folder.is_dir() else model
    engine = text_engine(answer, load_tokenizer(source), seconds=float(script.get("seconds", 0.0)))
    return engine, ModelCard(source, _context(script, folder), computes=False)


def _reply(said: Any) -> ScriptedReply:
    match said:
        case {"say": str(text), **rest}:
            texts: tuple[str, ...] = (text,)
        case {"say": [str(), *_] as several, **rest}:
            texts = tuple(str(text) for text in several)
        case _:
            raise _malformed(f"{said} is no reply")
    if set(rest) - {"when"}:
        raise _malformed(f"{said} has more than `when` and `say`")
    return ScriptedReply(texts, str(rest.get("when", "")))


def _function(path: str, base: Path) -> Callable[[str], str]:
    found = load_symbol(path, base)
    if not callable(found):
        raise _malformed(f"{path} is no function")
    return lambda prompt: str(found(prompt))


def _context(script: Mapping[str, Any], folder: Path) -> int:
    if "max_context" in script:
        return int(script["max_context"])
    try:
        return int(json.loads((folder / "config.json").read_text("utf-8"))["max_position_embeddings"])
    except (OSError, ValueError, KeyError, TypeError):
        raise _malformed(f"it does not say how long the context of {folder} is: add `max_context`") from None


def _malformed(what: str) -> ConfigError:
    return ConfigError(f"the script cannot be used: {what}", remedy="see loopwright/testing/scripted_server.py")


async def _serve(script: Path, host: str, port: int, key: str | None) -> None:
    engine, card = read_script(script)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with listening(
        engine_app(engine, card=replace(card, computes=False)), host=host, port=port, key=key
    ) as bound:
        print(json.dumps({"host": host, "port": bound, "pid": os.getpid()}), flush=True)
        await stop.wait()


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loopwright.testing.scripted_server")
    parser.add_argument("script", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--key-file", type=Path)
    given = parser.parse_args()
    asyncio.run(_serve(given.script, given.host, given.port, read_key(given.key_file) if given.key_file else None))


if __name__ == "__main__":
    _main()
