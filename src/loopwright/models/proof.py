"""The proof at load: a model is refused if it computes something else as we run it than by itself.

Architectures have hidden features: sinks, soft caps, windows that only a mask knows, scales that begin at late
positions, rotary angles that depend on the longest neighbour. Wrong numbers would spoil a training without a sign. So
sequences that a run may have are computed in one packed row, as in a batch, and compared with the model's own eager
forward pass of each sequence alone.
"""

from __future__ import annotations

from typing import Any

import torch

from loopwright.errors import ModelError
from loopwright.models.attention import NAME, unsupported
from loopwright.models.forward import ModuleForward
from loopwright.models.masks import ASKING, MaskedPlan, windows_of
from loopwright.models.probe import Probe, ProbeResult, run_probe

SHARE = 2e-3
"""How much logits may differ, relative to the largest logit. The tokens of the probe make no sense as text, and a
trained model then differs by 0.01 between its own float32 and float64."""
HALF_SHARE = 0.05
"""The same in half precision."""

FEW = 2
"""How many tokens are run to get the masks. Mask functions answer for all positions."""


@torch.no_grad()
def proven(model: Any, max_context: int) -> ProbeResult:
    """The result that the model was proven to compute. Raises ModelError if it computes something else here than by
    itself."""
    name, head = model.config.model_type, model.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        raise _no_product(name, "its head has a bias" if head is not None else "it has no head")
    probe = Probe.of(model, max_context, _windows(model, max_context))
    forward = ModuleForward(model)
    proven, theirs = run_probe(forward, probe), _by_itself(model, probe)
    ours = proven.logits.float()
    # In half precision (8 bits) numbers differ more, but the errors that we look for (a factor, a cap) are larger
    # still.
    share = SHARE if model.dtype == torch.float32 else HALF_SHARE
    allowed = share * float(theirs.abs().max())
    # Written with `not`, so that a NaN counts as a difference too.
    if not (difference := _apart(ours, theirs)) <= allowed:
        alone = torch.cat([run_probe(forward, part).logits.float() for part in probe.alone()])
        if _apart(alone, theirs) <= allowed:
            raise unsupported(name, f"a sequence's logits depend on what else is in its batch (by {difference:.2g})")
        raise unsupported(name, f"its logits differ by {difference:.2g} from its own attention's")
    if not (difference := _apart(_as_trained(model, probe), ours)) <= allowed:
        raise _no_product(name, f"off by {difference:.2g}")
    return proven


def _windows(model: Any, max_context: int) -> set[int]:
    """The windows of its layers, confirmed by its masks. It also checks that the logits are the head's output."""
    name, probe = model.config.model_type, Probe.of(model, min(max_context, FEW)).alone()[0]
    plan, given = MaskedPlan(probe.chunks), []
    hook = model.get_output_embeddings().register_forward_hook(lambda head, taken, result: given.append(result))
    model.set_attn_implementation(ASKING)
    try:
        logits = ModuleForward(model).logits(probe.ids, probe.positions, plan, None)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise unsupported(name, f"its forward fails: {type(error).__name__}: {error}") from error
    model.set_attn_implementation(NAME)
    hook.remove()
    if plan.layers_seen != set(range(model.config.num_hidden_layers)):
        raise unsupported(name, "not every layer asks for attention")
    if bool(logits.isnan().any()):
        raise unsupported(name, "its logits are NaN")
    # Compare all bits: the effect of a cap on small logits is tiny, and grows with the logits.
    if len(given) != 1 or not torch.equal(given[0][0].float(), logits.float()):
        raise _no_product(name, "something is done to what its head gives")
    return windows_of(model, plan, max_context)


def _by_itself(model: Any, probe: Probe) -> torch.Tensor:
    """The logits by the model's own attention and masks, each sequence alone."""
    model.set_attn_implementation("eager")
    rows = [
        model(input_ids=row.ids[None], position_ids=row.positions[None], use_cache=False).logits[0].float()
        for row in probe.alone()
    ]
    model.set_attn_implementation(NAME)
    return torch.cat(rows)


def _as_trained(model: Any, probe: Probe) -> torch.Tensor:
    """The logits as the learner computes them: from embeddings to hidden states, then by the head."""
    embedded = model.get_input_embeddings()(probe.ids[None])
    body = model.base_model(
        inputs_embeds=embedded, position_ids=probe.positions[None], plan=probe.plan(), use_cache=False
    )
    logits: torch.Tensor = body.last_hidden_state[0] @ model.get_output_embeddings().weight.t()
    return logits.float()


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


def _no_product(name: str, why: str) -> ModelError:
    return unsupported(name, f"its logits are not the product of hidden states and head ({why})")
