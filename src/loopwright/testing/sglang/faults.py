"""What a test can make the server do wrong."""

from __future__ import annotations

from dataclasses import dataclass


class AskedToDieError(Exception):
    """A test asked for the server's death."""


@dataclass(slots=True)
class Faults:
    """Change them while the server runs.

    Of an update of the weights: `refuse_updates` answers 400; `ignore_updates` answers 200 with the new label and
    changes nothing; `half_updates` answers 200 and leaves out the second half of the tensors; `die_in_update` ends the
    server when half of the tensors are in place; `hang_in_update` never answers; `keep_label` keeps the label.

    `refuse_flush` answers 400 to a flush, and `keep_cache` answers that it is done and keeps the tree. `wrong_logprobs`
    adds so many logprobs to an answer, or takes them away if it is negative. `wrong_label` is told instead of the
    label. `hang` lets every request wait without an answer. `die_after_tokens` ends the server when it has sampled so
    many.
    """

    refuse_updates: bool = False
    ignore_updates: bool = False
    half_updates: bool = False
    die_in_update: bool = False
    hang_in_update: bool = False
    keep_label: bool = False
    refuse_flush: bool = False
    keep_cache: bool = False
    wrong_logprobs: int = 0
    wrong_label: str | None = None
    hang: bool = False
    die_after_tokens: int | None = None
