"""The learner: packing, losses, optimiser.

`TokenBatch` is public: it is the argument of a user's own loss.
"""

from loopwright.learn.losses import TokenBatch

__all__ = ["TokenBatch"]
