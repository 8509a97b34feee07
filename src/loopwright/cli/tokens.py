"""Text and tokens for the terminal. Control characters in a model's text have no effect there."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loopwright.ports import Renderer
from loopwright.types import TokenChain

CONTEXT = "dim"
SAMPLED = ("black on green", "black on bright_green")
"""Neighbouring tokens have different colours, so that their borders show."""
CONSTRAINED = ("black on yellow", "black on bright_yellow")
"""Sampled tokens that do not train, because a constraint left no choice."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(text: str) -> str:
    """The text with control characters as pictures or codes; line breaks and tabs stay."""
    return _CONTROL.sub(_picture, text)


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code == 0x7F:
        return "␡"
    return chr(0x2400 + code) if code < 0x20 else f"\\x{code:02x}"


def print_indented(out: Console, text: Text, indent: int = 0) -> None:
    """Print with a margin. A terminal gets it wrapped; a file or pipe keeps every line whole."""
    lines = text.split("\n", allow_blank=True)
    if out.is_terminal:
        lines = text.wrap(out, max(20, out.width - indent))
    for line in lines:
        out.print(Text(" " * indent).append_text(line), soft_wrap=True)


def chain_text(chain: TokenChain, renderer: Renderer, *, coloured: bool) -> Text:
    """The chain as text in which sampled tokens stand out: by colour, or else each in ⟦brackets⟧, and constrained ones
    in ⟬others⟭."""
    text, constrained = Text(), chain.constrained_mask
    pieces = renderer.pieces([int(token) for token in chain.ids])
    for number, (piece, sampled) in enumerate(zip(pieces, chain.mask, strict=True)):
        shown = visible(piece)
        if not sampled:
            text.append(shown, style=CONTEXT if coloured else "")
            continue
        # A sampled line break is a token too: it is shown, and it breaks the line.
        marked = shown.replace("\n", "↵")
        left, right = "⟬⟭" if constrained[number] else "⟦⟧"
        styles = CONSTRAINED if constrained[number] else SAMPLED
        text.append(marked if coloured else f"{left}{marked}{right}", style=styles[number % 2] if coloured else "")
        text.append("\n" * shown.count("\n"))
    return text


def logprob_table(chain: TokenChain, renderer: Renderer) -> Table:
    """One row per sampled token."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("at", "token", "id", "logprob", "probability", "version"):
        table.add_column(heading, justify="left" if heading == "token" else "right")
    for row in _rows(chain, renderer):
        table.add_row(*(Text(cell) for cell in row))
    return table


def _rows(chain: TokenChain, renderer: Renderer) -> Iterator[tuple[str, ...]]:
    places = chain.mask.nonzero()[0]
    pieces = renderer.pieces([int(token) for token in chain.ids[places]])
    for place, piece, logprob in zip(places, pieces, chain.logprobs[places], strict=True):
        yield (
            str(place),
            repr(piece),
            str(chain.ids[place]),
            f"{logprob:.4f}",
            f"{math.exp(logprob):.3f}",
            str(chain.versions[place]),
        )
