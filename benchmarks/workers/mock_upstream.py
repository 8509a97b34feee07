"""The model behind every proxy: it answers at once, and always the same.

It speaks vLLM's generate route, for ours, and OpenAI's chat completions with ids and logprobs, as vLLM writes them, for
the others. Answers are bytes that were made beforehand. It is told the model's folder, the answer's ids and its text as
one line of JSON on standard input, prints its port, and ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.workers.framing import Messages, response_bytes

LOGPROB = -0.6931
CHAT = b"POST /v1/chat/completions "


def answers_of(spec: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Whole responses, by the first word of the request and its path."""
    model = {"id": "bench", "object": "model", "root": spec["model"], "max_model_len": spec["max_context"]}
    bodies = {
        CHAT: _chat(spec),
        b"POST /inference/v1/generate ": _generated(spec["answer_ids"]),
        b"GET /v1/models ": {"object": "list", "data": [model]},
        b"GET /version ": {"version": 0},
        b"GET /health ": {},
    }
    return {path: response_bytes(json.dumps(body, separators=(",", ":")).encode()) for path, body in bodies.items()}


def _generated(ids: list[int]) -> dict[str, Any]:
    choice = {
        "index": 0,
        "token_ids": ids,
        "logprobs": {"content": [{"token_id": token, "logprob": LOGPROB} for token in ids]},
        "weight_versions": [{"version": 0, "start": 0, "end": len(ids)}],
        "finish_reason": "stop",
    }
    return {"request_id": "bench", "choices": [choice]}


def _chat(spec: Mapping[str, Any]) -> dict[str, Any]:
    ids, pieces = spec["answer_ids"], spec["answer_pieces"]
    content = [
        {"token": piece, "logprob": LOGPROB, "bytes": list(piece.encode()), "top_logprobs": []} for piece in pieces
    ]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(pieces)},
        "logprobs": {"content": content},
        "finish_reason": "stop",
        "token_ids": ids,
    }
    prompt = len(spec["prompt_ids"])
    return {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "bench",
        "choices": [choice],
        "prompt_token_ids": spec["prompt_ids"],
        "usage": {"prompt_tokens": prompt, "completion_tokens": len(ids), "total_tokens": prompt + len(ids)},
    }


class Mock(Messages):
    """One client's connection."""

    def __init__(self, answers: Mapping[bytes, bytes]) -> None:
        super().__init__()
        self._answers = answers

    def message(self, message: bytes) -> None:
        path = message[: message.find(b" ", message.find(b" ") + 1) + 1]
        self.send(self._answers[path])


async def main() -> None:
    answers = answers_of(json.loads(sys.stdin.readline()))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Mock(answers), "127.0.0.1", backlog=1024)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
