"""Counts the tokens that would be wrong if a session's text were tokenised again. With recording, no trained token
is."""

from __future__ import annotations

from loopwright.core.drift import total
from loopwright.ports import Renderer
from loopwright.render.drift import chain_drift, readable
from loopwright.render.recording.recorder import Recorder
from loopwright.render.text_conversation import writer_of
from loopwright.types import EpisodeDrift


def session_drift(recorder: Recorder, renderer: Renderer) -> EpisodeDrift:
    """The drift of all chains. It renders every conversation again, so it is too slow to call while an agent waits for
    an answer."""
    drifts = (
        chain_drift(
            recorder.stream(span.last),
            recorder.conversation(span.last),
            writer_of(recorder.conversation(span.last), renderer),
            recorder.turns[span.last].tools,
            first_sampled=span.first_sampled,
            first_reply=span.first_reply,
            begun=span.begun,
        )
        for span in recorder.spans()
    )
    return readable(total(drifts), renderer)
