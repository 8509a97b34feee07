"""A judge endpoint on the loopback that can misbehave as a test needs.

It runs in its own threads, so it serves code that blocks as well as code that awaits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """A request to the server. Names of headers are in lower case."""

    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class JudgeReply:
    """A reply of the server, sent after `seconds`. A `body` of bytes is sent as it is, any other as JSON."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


def chat_reply(text: str | None, finish: str = "stop") -> JudgeReply:
    """A chat completion that says `text`."""
    return JudgeReply({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}]})


class JudgeServer:
    """Use it as `with`. `replies` is a function of the request, or a sequence whose last item is repeated.

    `requests` records all requests. With the `port` of an earlier server, it serves at the same address.
    """

    def __init__(self, replies: Callable[[JudgeRequest], JudgeReply] | Sequence[JudgeReply], *, port: int = 0) -> None:
        self._replies = replies
        self._closing = Event()
        self.requests: list[JudgeRequest] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def reply(self, request: JudgeRequest) -> JudgeReply:
        self.requests.append(request)
        if callable(self._replies):
            return self._replies(request)
        return self._replies[min(len(self.requests), len(self._replies)) - 1]

    def wait(self, seconds: float) -> None:
        """Wait for `seconds`, or until the server closes."""
        self._closing.wait(seconds)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            # HTTP/1.0, the default, keeps no connections open, so a closed server is really gone.
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                headers = {name.lower(): value for name, value in self.headers.items()}
                reply = server.reply(JudgeRequest(self.path, headers, body))
                server.wait(reply.seconds)
                self.send_response(reply.status)
                for name, value in {"content-length": str(len(reply.content)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                try:
                    self.wfile.write(reply.content)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True  # the caller did not wait for the reply

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing."""

        return Handler
