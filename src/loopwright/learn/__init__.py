"""The learner: packing, losses, optimiser.

Public is `TokenBatch`, which a loss of the user's own is given.
"""

from loopwright.learn.losses import TokenBatch

__all__ = ["TokenBatch"]
