"""Makes the learner's recipe from its section of the config.

The user's own functions and examples are loaded before the model, so that mistakes in them show early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopwright.build.parts import model_at
from loopwright.build.rank_loss import loss_in_rank
from loopwright.config import (
    AdvantageConfig,
    CispoConfig,
    GspoConfig,
    KlConfig,
    Loaded,
    LossConfig,
    PassAtK,
    PlainAdvantage,
    PpoClipConfig,
    PythonAdvantage,
    PythonLoss,
    ReinforceConfig,
    load_symbol,
)
from loopwright.core.advantage import ADVANTAGES, Advantage, Scores, pass_at_k_advantage, per_group
from loopwright.core.seeds import derive_seed
from loopwright.data.examples import ExampleConversation, read_examples
from loopwright.errors import ConfigError, DataError, LearnerError, ModelError
from loopwright.learn.body import Body, body_of
from loopwright.learn.custom import custom_advantage, custom_loss, try_loss
from loopwright.learn.importance import Importance
from loopwright.learn.kl import KlTerm
from loopwright.learn.losses import Clip, TokenLoss, cispo, gspo, ppo_clip, reinforce
from loopwright.learn.recipe import Recipe
from loopwright.learn.sft import Example, SftTerm
from loopwright.models.load import LoadedModel
from loopwright.models.tokenizer import ModelSpec
from loopwright.ports import Renderer
from loopwright.render.canonical import canonical_messages, canonical_tools
from loopwright.render.choose import make_renderer
from loopwright.types import Level, TrainerKind

if TYPE_CHECKING:
    from loopwright.learn.lora import AdaptedModel


@dataclass(frozen=True, slots=True)
class Ingredients:
    """The parts of a recipe that are loaded before the model."""

    advantage: Advantage
    loss: TokenLoss
    examples: Sequence[ExampleConversation]


def load_ingredients(loaded: Loaded) -> Ingredients:
    """Load the user's functions and examples; a mistake in them is an error that names them."""
    learner = loaded.config.learner
    return Ingredients(
        _advantage(learner.advantage, loaded),
        _loss(learner.loss, loaded),
        read_examples(loaded.base / learner.sft.path) if learner.sft else (),
    )


def rehearse_learner(loaded: Loaded) -> Iterator[str]:
    """Load the user's functions and examples, and call the functions once on made-up numbers."""
    learner, own = loaded.config.learner, load_ingredients(loaded)
    if isinstance(learner.advantage, PythonAdvantage):
        groups = [Scores((1.0, 0.0, 0.5), (4, 2, 3)), Scores((1.0, 1.0), (5, 5)), Scores((0.0,), (1,))]
        rewards = [list(group.rewards) for group in groups]
        yield f"  advantage {learner.advantage.path} gives {own.advantage(groups)} to the rewards {rewards}"
    if isinstance(learner.loss, PythonLoss):
        losses = try_loss(own.loss, with_reference=learner.kl is not None)
        yield f"  loss {learner.loss.path} gives {losses} to two good and two bad tokens"
    if learner.sft:
        yield f"  {len(own.examples):,} examples in {learner.sft.path}"


def make_recipe(
    loaded: Loaded, ingredients: Ingredients, model: LoadedModel, cache: Path, adapted: AdaptedModel | None = None
) -> Recipe:
    """Complete the recipe for `model`, or for its adapters. Loads the reference model, if there is one: call it in the
    compute thread."""
    config = loaded.config.learner.kl
    kl = _kl(config, loaded, model, cache, adapted) if config else None
    return _recipe(loaded, ingredients.advantage, ingredients.loss, kl, _sft(loaded, ingredients.examples, model))


def make_driver_recipe(loaded: Loaded, ingredients: Ingredients, model: ModelSpec) -> Recipe:
    """The recipe of a driver whose ranks compute: it has no reference model."""
    config = loaded.config.learner.kl
    kl = KlTerm(config.kind, config.coefficient, None) if config else None
    return _recipe(loaded, ingredients.advantage, ingredients.loss, kl, _sft(loaded, ingredients.examples, model))


def make_rank_recipe(loaded: Loaded, rank: int, reference: Callable[[str], Body]) -> Recipe:
    """The recipe of rank `rank`, which gets advantages and examples with each step. `reference` loads the model at a
    path."""
    config, sft = loaded.config.learner.kl, loaded.config.learner.sft
    path = config.reference if config and config.reference else loaded.config.model.path
    kl = KlTerm(config.kind, config.coefficient, reference(path)) if config else None
    term = SftTerm((), sft.coefficient, sft.examples_per_step, seed=0) if sft else None
    loss = loss_in_rank(rank, lambda: _loss(loaded.config.learner.loss, loaded))
    return _recipe(loaded, _no_advantage, loss, kl, term)


def _no_advantage(groups: Sequence[Scores]) -> list[list[float]]:
    raise LearnerError("a rank was asked for advantages", remedy="please report this: the driver computes them")


def _recipe(loaded: Loaded, advantage: Advantage, loss: TokenLoss, kl: KlTerm | None, sft: SftTerm | None) -> Recipe:
    config, learner = loaded.config, loaded.config.learner
    bounds = learner.importance
    return Recipe(
        advantage=advantage,
        loss=loss,
        temperature=config.rollout.temperature,
        steps=config.trainer.steps,
        constant_length=learner.loss.constant_length or config.rollout.max_new_tokens,
        aggregate=learner.loss.aggregate,
        token_numbers=config.track.tokens,
        importance=Importance(bounds.kind, bounds.level, bounds.cap, bounds.floor),
        clip=_clip(learner.loss),
        kl=kl,
        sft=sft,
        loss_without_advantage=isinstance(learner.loss, PythonLoss),
        lr=learner.lr,
        betas=learner.betas,
        eps=learner.eps,
        weight_decay=learner.weight_decay,
        schedule=learner.schedule,
        warmup_steps=learner.warmup_steps,
        max_grad_norm=learner.max_grad_norm,
        mini_batches=learner.mini_batches,
        micro_batch_tokens=learner.micro_batch_tokens,
        checkpoint_activations=learner.checkpoint_activations,
        lends_device=config.trainer.kind is TrainerKind.COLOCATE
        and config.rollout.engine.processes(config.trainer.kind) > 0,
    )


def _advantage(config: AdvantageConfig, loaded: Loaded) -> Advantage:
    match config:
        case PlainAdvantage():
            return ADVANTAGES[config.kind]
        case PassAtK():
            return per_group(partial(pass_at_k_advantage, k=config.k))
        case PythonAdvantage():
            function = _function("learner.advantage", "def mine(groups)", config.path, config.args, loaded)
            return custom_advantage(config.path, function, config.args)


def _loss(config: LossConfig, loaded: Loaded) -> TokenLoss:
    match config:
        case PpoClipConfig():
            return partial(ppo_clip, clip_low=config.clip_low, clip_high=config.clip_high, dual_clip=config.dual_clip)
        case GspoConfig():
            return partial(gspo, clip_low=config.clip_low, clip_high=config.clip_high)
        case CispoConfig():
            return partial(cispo, clip_low=config.clip_low, clip_high=config.clip_high)
        case ReinforceConfig():
            return reinforce
        case PythonLoss():
            function = _function("learner.loss", "def mine(batch)", config.path, config.args, loaded)
            return custom_loss(config.path, function, config.args)


def _clip(config: LossConfig) -> Clip | None:
    match config:
        case PpoClipConfig():
            return Clip(config.clip_low, config.clip_high)
        case CispoConfig():
            return Clip(config.clip_low, config.clip_high, both_ways=True)
        case GspoConfig():
            return Clip(config.clip_low, config.clip_high, Level.SEQUENCE)
        case _:
            return None


def _function(place: str, shape: str, path: str, args: Mapping[str, Any], loaded: Loaded) -> Callable[..., Any]:
    function = load_symbol(path, loaded.base, loaded.objects)
    if not callable(function):
        raise ConfigError(
            f"{place}.path {path!r} names {function!r:.80}, which cannot be called", remedy=f"name a function `{shape}`"
        )
    try:
        signature(function).bind(None, **args)
    except TypeError as error:
        raise ConfigError(
            f"{place}.path {path!r} cannot be called with args {dict(args)}: {error}",
            remedy=f"write it as `{shape}` with a parameter for each of {place}.args",
        ) from error
    return function


def _kl(config: KlConfig, loaded: Loaded, model: LoadedModel, cache: Path, adapted: AdaptedModel | None) -> KlTerm:
    """The KL term. By default its reference is the run's initial model, also in a resumed run."""
    if adapted is not None and config.reference is None:
        return KlTerm(config.kind, config.coefficient, adapted.reference())
    path = config.reference or loaded.config.model.path
    reference = model_at(loaded, path, cache)
    require_vocabulary(path, reference.vocabulary, model.vocabulary)
    reference.model.requires_grad_(False)
    return KlTerm(config.kind, config.coefficient, body_of(reference))


def require_vocabulary(path: str, size: int, wanted: int) -> None:
    """Raise ModelError if the reference at `path` has another number of tokens than the model."""
    if size != wanted:
        raise ModelError(
            f"learner.kl.reference {path!r} has {size} tokens, and model.path {wanted}",
            remedy="name a model with the same tokenizer, or leave it out",
        )


def _sft(loaded: Loaded, conversations: Sequence[ExampleConversation], model: ModelSpec) -> SftTerm | None:
    config, seed = loaded.config.learner.sft, loaded.config.trainer.seed
    if config is None:
        return None
    renderer = make_renderer(model.tokenizer, loaded.config.model.renderer)
    examples = tuple(_example(each, renderer, model.max_context) for each in conversations)
    return SftTerm(examples, config.coefficient, config.examples_per_step, derive_seed(seed, "sft"))


def _example(conversation: ExampleConversation, renderer: Renderer, max_context: int) -> Example:
    rendered = renderer.answered(canonical_messages(conversation.messages), canonical_tools(conversation.tools))
    if rendered is None:
        raise DataError(
            f"{conversation.where}: the chat template changes what stands before the answer, so it cannot be learned",
            remedy="end the conversation with one plain assistant message",
        )
    example = Example.of(*rendered)
    if len(example.ids) > max_context:
        raise DataError(
            f"{conversation.where}: the example has {len(example.ids)} tokens, more than the model's {max_context}",
            remedy="shorten it, or leave it out",
        )
    return example
