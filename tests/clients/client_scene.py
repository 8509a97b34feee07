"""A client and a gateway alone on a loopback: run by `clients.play` in a network namespace of its own.

The engine is scripted and speaks tokens of SmolLM2 that no tokenizer would choose. Reads a scene from standard input
and writes what came of it to standard output, after the chains were checked against what the engine received.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway_house import RecordingEngine, checked_chains
from transformers import AutoTokenizer

from loopwright.gateway.offer import Served
from loopwright.gateway.server import open_gateway
from loopwright.gateway.session import SessionSettings
from loopwright.gateway.store import MemoryStore
from loopwright.render.bytes import BYTES
from loopwright.render.choose import make_renderer
from loopwright.types import GenerateRequest

MAX_CONTEXT = 32768
PATIENCE = 400
SESSION = "session-1"
SIOCSIFFLAGS, UP_AND_RUNNING = 0x8914, 0x41


def raise_loopback() -> None:
    """A new namespace has a loopback that is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", UP_AND_RUNNING))


class OddTokens:
    """A tokenizer that encodes as no other would, but a model may."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._letters = {byte: letter for letter, byte in BYTES.items()}
        self._vocabulary = tokenizer.get_vocab()

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids))

    def encode(self, text: str) -> tuple[int, ...]:
        """One token for each byte, but for every other ASCII word: characters are split, words are merged or not."""
        ids: list[int] = []
        for number, word in enumerate(text.split(" ")):
            spaced = f" {word}" if number else word
            if number % 2 and word.isalpha() and word.isascii():
                ids += self._tokenizer.encode(spaced, add_special_tokens=False)
            else:
                ids += [self._vocabulary[self._letters[byte]] for byte in spaced.encode()]
        return (*ids, self._tokenizer.eos_token_id)


class Speaker:
    """Says the script's next line to those who ask about the task, and little to others: clients ask for titles too.

    A request for the same prompt gets the same line.
    """

    def __init__(self, tokens: OddTokens, task: str, lines: list[str]) -> None:
        self._tokens = tokens
        self._task = task
        self._lines = lines
        self._said: dict[tuple[int, ...], str] = {}

    def answer(self, request: GenerateRequest) -> str:
        if self._task not in self._tokens.decode(request.prompt_ids):
            return "Nothing."
        number = min(len(self._said), len(self._lines) - 1)
        return self._said.setdefault(request.prompt_ids, self._lines[number])


async def play(scene: dict[str, Any]) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(scene["model"])
    tokens = OddTokens(tokenizer)
    engine = RecordingEngine(Speaker(tokens, scene["task"], scene["lines"]).answer, encode=tokens.encode)
    served = Served(engine, make_renderer(tokenizer), MAX_CONTEXT, "smollm2")
    async with open_gateway(served, MemoryStore(), key="the-gateways-own-key") as gateway:
        session, key = gateway.sessions.create(SESSION, SessionSettings())
        url = f"{gateway.base_url}/sessions/{SESSION}"
        code, out, err = await run_client(scene, {"URL": url, "KEY": key})
        recorder = session.recorder
        chains = checked_chains(recorder, engine, SESSION)
    return {
        "code": code,
        "out": out,
        "err": err,
        "starts": [chain.start for chain in chains],
        "sampled": [chain.sampled for chain in chains],
        "asked": [len(request.prompt_ids) for request, _ in engine.log],
        "answered": [len(generation.ids) for _, generation in engine.log],
        "conversation": [dict(message) for message in recorder.conversation(len(recorder) - 1)] if recorder else [],
    }


async def run_client(scene: dict[str, Any], words: dict[str, str]) -> tuple[int | None, str, str]:
    def filled(text: str) -> str:
        for name, value in words.items():
            text = text.replace(f"${name}", value)
        return text

    for name, text in scene["files"].items():
        file = Path(scene["home"]) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(filled(text))
    client = await asyncio.create_subprocess_exec(
        *(filled(part) for part in scene["command"]),
        cwd=scene["home"],
        env={name: filled(value) for name, value in scene["environment"].items()},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE):
            out, err = await client.communicate()
    except TimeoutError:
        client.kill()
        out, err = await client.communicate()
    return client.returncode, out.decode(errors="replace"), err.decode(errors="replace")


if __name__ == "__main__":
    raise_loopback()
    print(json.dumps(asyncio.run(play(json.load(sys.stdin)))))
