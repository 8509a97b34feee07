"""Who may read (S3). A page trades the key for a cookie, so that no link to a view carries the key.

The cookie is derived from the key. So a page stays open when the server comes back with the same key, and nothing has
to be remembered.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

from starlette.requests import Request
from starlette.responses import Response

from loopwright.errors import RefusedError

MONTH = 30 * 24 * 3600


class Access:
    """The key of one server."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._cookie = hmac.new(key.encode(), b"loopwright page cookie", sha256).hexdigest()

    def check(self, request: Request) -> None:
        """Refuse a request that has neither the cookie nor the key."""
        if hmac.compare_digest(request.cookies.get(_cookie_name(request), "").encode(), self._cookie.encode()):
            return
        if hmac.compare_digest(request.headers.get("authorization", "").encode(), f"Bearer {self._key}".encode()):
            return
        raise RefusedError(
            "this page needs the key of its server",
            remedy="open the link that `loopwright ui` printed, or paste the key from its key file",
            status=401,
        )

    def trade(self, request: Request, key: str) -> Response:
        """The answer to whoever has sent the key: the cookie."""
        if not hmac.compare_digest(key.encode(), self._key.encode()):
            raise RefusedError(
                "this is not the key of this server", remedy="copy the link again, or read the key file", status=401
            )
        answer = Response(status_code=204)
        name = _cookie_name(request)
        answer.set_cookie(name, self._cookie, max_age=MONTH, httponly=True, samesite="strict", path="/")
        return answer


def _cookie_name(request: Request) -> str:
    """It has the port that the browser asks for, because a browser sends its cookies to every port of a host."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"loopwright_{port}" if port.isascii() and port.isdecimal() else "loopwright"
