"""An engine that stamps all tokens with one version, whatever version it has itself.

A session has its own versions. Tokens of a version that it never had would look like those of a run that was rolled
back, and would be lost when the session resumes after a kill.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from loopwright.ports import OnPart, StreamingEngine
from loopwright.types import GenerateRequest, Generation, PauseMode, WeightFile


@dataclass(frozen=True, slots=True)
class Stamped:
    """A `StreamingEngine` in front of another."""

    engine: StreamingEngine
    version: int

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        if on_part is None:
            return self._stamp(await self.engine.generate(request))
        shown = on_part
        return self._stamp(await self.engine.generate(request, lambda part: shown(self._stamp(part))))

    async def abort(self, request_id: str) -> None:
        await self.engine.abort(request_id)

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        await self.engine.pause(mode)

    async def resume(self) -> None:
        await self.engine.resume()

    async def load(self, version: int, weights: Mapping[str, Any] | WeightFile | None = None) -> None:
        await self.engine.load(version, weights)

    def _stamp(self, generation: Generation) -> Generation:
        return replace(generation, versions=(self.version,) * len(generation.ids))
