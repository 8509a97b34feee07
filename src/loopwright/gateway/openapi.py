"""The gateway's own routes, described as OpenAPI. The bodies of model calls are those of the APIs that they copy."""

from __future__ import annotations

from typing import Any

SESSION = {"name": "session", "in": "path", "required": True, "schema": {"type": "string"}}
VERSION = {
    "name": "version",
    "in": "query",
    "description": "Only if the record is at this version, which `complete` tells; otherwise 409.",
    "schema": {"type": "string"},
}
PARAMETERS = {name: {**SESSION, "name": name} for name in ("response", "model")}
SETTINGS = {
    "type": "object",
    "properties": {
        "sampling": {
            "type": "object",
            "description": "Overrides what the agent asks for: temperature, top_p, top_k, max_new_tokens, stop.",
        },
        "max_tokens": {"type": "integer", "description": "The budget of all turns together."},
        "ttl_seconds": {"type": "number", "description": "An unused session ends after so long."},
        "seed": {"type": "integer"},
        "label": {"type": "string", "description": "Shown in the list of sessions."},
        "affinity": {"type": "string", "description": "Sessions with the same text begin with the same prompt."},
    },
}
ROUTES: tuple[tuple[str, str, str, bool], ...] = (
    ("get", "/health", "Whether the gateway is up.", False),
    ("get", "/metrics", "Numbers for Prometheus.", True),
    ("get", "/run", "Which training run holds the gateway; tells that run the times of its open sessions.", True),
    ("put", "/run", "Register a training run, or renew its lease; gives the times of its open sessions.", True),
    ("delete", "/run", "The training run has ended.", True),
    ("get", "/sessions", "All sessions.", True),
    ("post", "/sessions", "Create a session with an id of our choice.", True),
    ("post", "/sessions/{session}", "Create a session; gives its key and its base URLs.", True),
    ("get", "/sessions/{session}", "How a session stands.", True),
    ("delete", "/sessions/{session}", "Forget a session and all that it recorded.", True),
    ("post", "/sessions/{session}/complete", "Its agent is done: no more calls.", True),
    ("get", "/sessions/{session}/chains", "What it recorded, token by token.", True),
    ("get", "/sessions/{session}/record", "The same with conversations, tools, and how the last call ended.", True),
    ("put", "/sessions/{session}/outcome", "What became of a completed session; `record` gives it back.", True),
    ("get", "/sessions/{session}/v1/models", "The one model, which answers to every name.", True),
    ("post", "/sessions/{session}/v1/chat/completions", "OpenAI Chat Completions.", True),
    ("post", "/sessions/{session}/v1/completions", "OpenAI Completions, without a chat template.", True),
    ("post", "/sessions/{session}/v1/responses", "OpenAI Responses.", True),
    ("post", "/sessions/{session}/v1/responses/input_tokens", "How long a prompt would be.", True),
    ("get", "/sessions/{session}/v1/responses/{response}", "A response that was given.", True),
    ("delete", "/sessions/{session}/v1/responses/{response}", "No request can name it any more.", True),
    ("post", "/sessions/{session}/v1/responses/compact", "A conversation, compacted to a summary.", True),
    ("get", "/sessions/{session}/v1/responses/{response}/input_items", "What a response answered.", True),
    ("post", "/sessions/{session}/v1/messages", "Anthropic Messages.", True),
    ("post", "/sessions/{session}/v1beta/models/{model}:generateContent", "Gemini.", True),
    ("post", "/sessions/{session}/v1beta/models/{model}:streamGenerateContent", "Gemini, streamed (alt=sse).", True),
    ("post", "/sessions/{session}/v1beta/models/{model}:countTokens", "How long a prompt would be.", True),
    ("post", "/sessions/{session}/v1/messages/count_tokens", "How long a prompt would be.", True),
)
AT_A_VERSION = frozenset(
    {
        ("delete", "/sessions/{session}"),
        ("get", "/sessions/{session}/chains"),
        ("get", "/sessions/{session}/record"),
        ("put", "/sessions/{session}/outcome"),
    }
)


def openapi_document(server: str) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for method, path, about, keyed in ROUTES:
        paths.setdefault(path, {})[method] = _operation(method, path, about, keyed)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Loopwright gateway", "version": "1"},
        "servers": [{"url": server}],
        "paths": paths,
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(method: str, path: str, about: str, keyed: bool) -> dict[str, Any]:
    operation: dict[str, Any] = {"summary": about, "responses": {"default": {"description": about}}}
    if "{session}" in path:
        operation["parameters"] = [SESSION, *(one for name, one in PARAMETERS.items() if f"{{{name}}}" in path)]
    if (method, path) in AT_A_VERSION:
        operation["parameters"].append(VERSION)
    if method in ("post", "put") and not path.endswith("complete"):
        schema = SETTINGS if path in ("/sessions", "/sessions/{session}") else {"type": "object"}
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    if keyed:
        operation["security"] = [{"key": []}]
    return operation
