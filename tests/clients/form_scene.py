"""Libraries that ask for answers in a form, and a gateway over a tiny random model, alone on a loopback: run by
`clients.played`. The chains are checked against what the engine received, and their logprobs against transformers."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from client_scene import raise_loopback, run_client
from gateway_house import KEY, House
from torch_house import CONTEXT, check_trained, torch_house

from loopwright.testing.tiny import tiny_llama


async def play(scene: dict[str, Any]) -> dict[str, Any]:
    folder = tiny_llama(Path(scene["home"]) / "model", initializer_range=0.4, max_position_embeddings=CONTEXT)
    async with torch_house(folder) as h:
        return {client: await ask(h, folder, scene, client) for client in scene["clients"]}


async def ask(h: House, folder: Path, scene: dict[str, Any], client: str) -> dict[str, Any]:
    """One client's question, in a session of its own."""
    session = await h.session(f"session-{client}", seed=scene["seed"])
    url = f"{h.gateway.base_url}/sessions/{session}/v1"
    asking = {**scene, "command": [*scene["command"], client]}
    code, out, err = await run_client(asking, {"URL": url, "KEY": KEY})
    chains = h.chains(session)
    forms = [request.constraint is not None for request, _ in h.engine.log if request.id.startswith(f"{session}/")]
    if all(forms):
        check_trained(folder, chains)
    return {"code": code, "out": out, "err": err, "chains": len(chains), "forms": forms}


if __name__ == "__main__":
    raise_loopback()
    print(json.dumps(asyncio.run(play(json.load(sys.stdin)))))
