"""Who may ask for what: SGLang has one key for all, or another one for the routes that control the server."""

from __future__ import annotations

import asyncio

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from loopwright.testing.sglang.faults import Faults

CONTROL = (
    "/abort_request",
    "/pause_generation",
    "/continue_generation",
    "/update_weights_from_",
    "/update_weight_version",
    "/init_weights_update_group",
    "/destroy_weights_update_group",
    "/flush_cache",
    "/release_memory_occupation",
    "/resume_memory_occupation",
    "/weights_checker",
    "/get_weights_by_name",
    "/fake/faults",
)
"""The routes that need the admin key, if there is one."""
OPEN = ("/health", "/metrics")


class Keys:
    """Refuses requests without the right key, and lets all wait while the server hangs."""

    def __init__(self, app: ASGIApp, key: str | None, admin_key: str | None, faults: Faults) -> None:
        self._app, self._key, self._admin_key = app, key, admin_key
        self._faults = faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted = self._wanted(scope["path"])
        given = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        if wanted is not None and given != f"Bearer {wanted}":
            await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)
            return
        if self._faults.hang and scope["path"] != "/fake/faults":
            await asyncio.Event().wait()
        await self._app(scope, receive, send)

    def _wanted(self, path: str) -> str | None:
        if path.startswith(OPEN):
            return None
        is_control = path.startswith(CONTROL)
        return self._admin_key or self._key if is_control else self._key
