"""From a token chain back to the turns behind it."""

from __future__ import annotations

import numpy as np

from loopwright.types import FinishReason, TokenChain, Turn


def turns_of(chain: TokenChain) -> tuple[Turn, ...]:
    """The turns behind a chain: one for each run of sampled tokens, with all tokens before it as the prompt.

    A chain does not record why a turn ended, so each turn is returned as if it had been cut short.
    """
    edges = np.flatnonzero(np.diff(chain.mask, prepend=False, append=False)).tolist()
    return tuple(
        Turn(
            tuple(chain.ids[:begin].tolist()),
            tuple(chain.ids[begin:end].tolist()),
            tuple(chain.logprobs[begin:end].tolist()),
            tuple(chain.versions[begin:end].tolist()),
            FinishReason.ABORT,
        )
        for begin, end in zip(edges[::2], edges[1::2], strict=True)
    )
