"""What the page says of the tokens of one chain, a page at a time: chains may have hundreds of thousands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from loopwright.runs.one_rollout import RolloutPage
from loopwright.runs.trained_tokens import push_meaning, why_untrained
from loopwright.types import TokenChain
from loopwright.types.tokens import FloatArray, IntArray
from loopwright.ui.answers import cut, numbers
from loopwright.ui.asked import Asked
from loopwright.ui.run_answers import stored_config
from loopwright.ui.run_view import RunView
from loopwright.ui.trajectory_answers import find, sampled_of

MOST_TOKENS = 4000


def show_tokens(view: RunView, asked: Asked) -> dict[str, Any]:
    """Tokens `from` on. What was not stored is None as a whole."""
    page, index = find(view, asked), asked.number("chain", 0)
    chain = sampled_of(page.rollout, index)
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
        **_trained(page, chain, index, part),
        "push_meaning": view.remembered("push", lambda: _push_meaning(view)),
    }


def _push_meaning(view: RunView) -> dict[str, Any] | None:
    learner = stored_config(view).get("learner")
    found = push_meaning(learner) if isinstance(learner, Mapping) else None
    return None if found is None else found._asdict()


def _trained(page: RolloutPage, chain: TokenChain, index: int, part: slice) -> dict[str, Any]:
    """What the train step did with these tokens. A run of an earlier version has stored nothing of it."""
    trained = page.trained
    is_stored = trained is not None or any(one.advantage is not None for one in page.members)
    if page.step is not None and not is_stored:
        return {"advantage": None, "token_weight": None, "mismatch": None, "push": None, "why_untrained": None}
    reasons = why_untrained(chain, index, trained)[part]
    found = trained.chains.get(index) if trained is not None else None
    pushes = trained.pushes(index) if trained is not None else None
    return {
        "advantage": trained.advantage if trained is not None else None,
        "token_weight": trained.token_weight if trained is not None else None,
        "mismatch": None if found is None else _placed(found.positions, found.mismatch, part),
        "push": None if found is None or pushes is None else _placed(found.positions, pushes, part),
        "why_untrained": reasons,
    }


def _placed(positions: IntArray, values: FloatArray, part: slice) -> list[float | None]:
    """The values at their places in this part of the chain. None: the token did not train."""
    row = np.full(part.stop - part.start, np.nan)
    here = (positions >= part.start) & (positions < part.stop)
    row[positions[here] - part.start] = values[here]
    return numbers(row.tolist(), 4)
