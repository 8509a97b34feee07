"""What tokenising a session's text again would have got wrong, in tokens: the number that recording makes 0."""

from __future__ import annotations

from loopwright.core.drift import total
from loopwright.ports import Renderer
from loopwright.render.drift import chain_drift, readable
from loopwright.render.recording.recorder import Recorder
from loopwright.types import EpisodeDrift


def session_drift(recorder: Recorder, renderer: Renderer) -> EpisodeDrift:
    """The drift of all chains. It renders every conversation anew: not for the time between a question and its
    answer."""
    drifts = (
        chain_drift(
            recorder.stream(span.last),
            recorder.conversation(span.last),
            renderer,
            recorder.turns[span.last].tools,
            first_sampled=span.first_sampled,
            first_reply=span.first_reply,
        )
        for span in recorder.spans()
    )
    return readable(total(drifts), renderer)
