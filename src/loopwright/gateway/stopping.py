"""Stop strings: the engine samples them and stops there. A client gets neither the stop string nor what follows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loopwright.types import ContentDelta, Delta


class StopText:
    """Cuts a content that arrives in pieces. Text that may be the beginning of a stop string is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """The content that is certain now."""
        if not self._stops:
            return text
        if self.found is not None:
            return ""
        text = self._held + text
        places = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            place, self.found = min(places)
            self._held = ""
            return text[:place]
        kept = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def finish(self) -> str:
        """The text that was held back and is no stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` begin `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


class CutDeltas:
    """Deltas of one completion, with the content cut at the first stop string. Calls after it are dropped too."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._text = StopText(stops)

    @property
    def found(self) -> str | None:
        return self._text.found

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        heard: list[Delta] = []
        for delta in deltas:
            if self.found is not None:
                break
            if isinstance(delta, ContentDelta):
                heard += _content(self._text.feed(delta.text))
            else:
                # A stop string is within one piece of content, so any other delta ends the wait for its rest.
                heard += [*_content(self._text.finish()), delta]
        return heard

    def finish(self) -> list[Delta]:
        return _content(self._text.finish())


def _content(text: str) -> list[Delta]:
    return [ContentDelta(text)] if text else []
