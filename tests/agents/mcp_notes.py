"""An MCP server that keeps notes for as long as it lives, written from the protocol: one JSON object per line."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

NOTES: list[str] = []

REMEMBER = {
    "name": "remember",
    "description": "Keep a note.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            info = {"name": "notes", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": [REMEMBER, {**REMEMBER, "name": "forget"}]}
        case "tools/call":
            text = params["arguments"].get("text", "")
            if text == "die" or (text == "die once" and not _was_here()):
                os._exit(3)
            if text == "hang":
                time.sleep(30.0)
            if text == "bad":
                return {"content": [{"type": "text", "text": "no bad words"}], "isError": True}
            NOTES.append(text)
            said = f"{len(NOTES)} notes, {os.environ.get('SECRET', 'no')} secret, {os.environ.get('MOOD')}"
            return {"content": [{"type": "text", "text": said}]}
    return None


def _was_here() -> bool:
    """Whether this is called for the second time, by whichever process, with the same `--mark FILE`."""
    try:
        open(sys.argv[sys.argv.index("--mark") + 1], "x").close()
    except FileExistsError:
        return True
    return False


def main() -> None:
    if "--refuse" in sys.argv or ("--start-once" in sys.argv and _was_here()):
        sys.exit("out of ink")
    if "--slow-again" in sys.argv and _was_here():
        time.sleep(1.0)
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        result = answer(request["method"], request.get("params") or {})
        wrong = {"error": {"code": -32601, "message": "Method not found"}}
        reply = {"jsonrpc": "2.0", "id": request["id"], **({"result": result} if result is not None else wrong)}
        print(json.dumps(reply), flush=True)
        if (request.get("params") or {}).get("arguments", {}).get("text") == "die afterwards":
            os._exit(3)


if __name__ == "__main__":
    main()
