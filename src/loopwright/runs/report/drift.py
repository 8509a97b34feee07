"""The report's part on drift: what the gateway recorded, and which tokens would be wrong if its text were tokenised
again."""

from __future__ import annotations

from html import escape

from loopwright.runs.report.data import RunSummary
from loopwright.types import ChainStart, TokenDiff


def drift_paragraph(run: RunSummary, first: TokenDiff | None) -> str:
    """The paragraph as HTML. It is empty if no agent of the run uses the gateway."""
    if not run.series("drift/tokens"):
        return ""
    chains, trained = run.total("chains/recorded"), run.total("chains/trained")
    tokens, wrong = run.total("drift/tokens"), run.total("drift/wrong")
    forks = {start.value: run.total(f"chains/forks_{start}") for start in ChainStart}
    reasons = ", ".join(f"{count} {reason}" for reason, count in forks.items() if count)
    told = [
        f"{chains:,} chains were recorded"
        + (f", {trained:,} of them trained" if trained < chains else "")
        + (f"; forks: {reasons}." if reasons else "; no conversation forked."),
        f"Of {tokens:,} tokens, {wrong:,} would have been wrong if the text had been tokenised again; "
        "what is trained are the tokens that were sampled.",
    ]
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in told) + (_diff(first) if first else "")


def _diff(first: TokenDiff) -> str:
    sides = (("both", first.before), ("sampled", first.recorded), ("tokenised again", first.naive))
    lines = "\n".join(f"{name:<16}{_pieces(pieces)}" for name, pieces in sides)
    return f"<p>The first difference, token by token:</p><pre>{escape(lines)}</pre>"


def _pieces(pieces: tuple[str, ...]) -> str:
    return " ".join(f"⟦{piece.replace(chr(10), '↵')}⟧" for piece in pieces) or "(ends here)"
