"""An engine that stamps all tokens with one version, whatever version it has itself.

A session has its own versions. Tokens of a version that it never had would look like those of a run that was rolled
back, and would be lost when the session resumes after a kill.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from loopwright.ports import OnPart, StreamingEngine
from loopwright.types import IN_PLACE, GenerateRequest, Generation, PauseMode, ProbeAnswer, WeightUpdate


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

    async def load(self, version: int, update: WeightUpdate = IN_PLACE) -> None:
        await self.engine.load(version, update)

    async def probe(self, request: GenerateRequest) -> ProbeAnswer:
        return await self.engine.probe(request)

    def _stamp(self, generation: Generation) -> Generation:
        return replace(generation, versions=(self.version,) * len(generation.ids))
