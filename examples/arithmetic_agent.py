"""The smallest agent behind a base URL: it asks once, with the openai SDK."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from loopwright import Task


async def answer(task: Task, base_url: str, api_key: str) -> None:
    """Ask the model. What it sampled is recorded at `base_url`; nothing has to be returned."""
    messages: Any = list(task.messages)
    # The gateway is nearby: reading the world's certificates for every rollout would only take time.
    http = DefaultAsyncHttpxClient(verify=False)
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http) as client:
        await client.chat.completions.create(model="policy", messages=messages)
