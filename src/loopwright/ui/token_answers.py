"""What the page says of the tokens of one chain, a page at a time: chains may have hundreds of thousands."""

from __future__ import annotations

from typing import Any

from loopwright.ui.answers import cut, numbers
from loopwright.ui.asked import Asked
from loopwright.ui.run_view import RunView
from loopwright.ui.trajectory_answers import find, sampled_of

MOST_TOKENS = 4000


def show_tokens(view: RunView, asked: Asked) -> dict[str, Any]:
    """Tokens `from` on. What was not stored is None as a whole."""
    page = find(view, asked)
    chain = sampled_of(page.rollout, asked.number("chain", 0))
    begin = min(asked.number("from", 0), len(chain))
    end = min(len(chain), begin + min(MOST_TOKENS, asked.number("count", 1000)))
    part, texts = slice(begin, end), view.texts()
    ids = chain.ids[part].tolist()
    return {
        "from": begin,
        "total": len(chain),
        "ids": ids,
        "texts": cut(texts.of(ids)),
        "why_no_texts": texts.why_not,
        "sampled": chain.mask[part].astype(int).tolist(),
        "logprobs": numbers(chain.logprobs[part].tolist(), 5),
        "versions": chain.versions[part].tolist(),
        "constrained": chain.constrained_mask[part].astype(int).tolist() if chain.constrained else None,
        "mismatch": None,
        "push": None,
        "why_untrained": None,
    }
