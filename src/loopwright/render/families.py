"""Finds the model family of a tokenizer, among those that the `renderers` library supports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from loopwright.errors import ConversationError, ModelError
from loopwright.render.canonical import template_messages, template_tools
from loopwright.render.family_renderer import LIBRARY_ERRORS, FamilyRenderer
from loopwright.render.family_tokenizer import LibraryTokenizer
from loopwright.render.probes import ASKED, CALLED, RESULT, TOOL
from loopwright.render.vocabulary import ChatTokenizer
from loopwright.types import Message, Thinking, Tool

RECOGNISED_BY: tuple[tuple[list[Message], list[Tool]], ...] = (
    ([ASKED], []),
    ([{"role": "system", "content": "loopwright-system"}, ASKED], [TOOL]),
    ([ASKED, CALLED, RESULT], [TOOL]),
)
"""A family is recognised if it renders these as the model's own template does."""

NEVER_TRIED = {"default", "gpt-oss"}
"""`default` is no family, and `gpt-oss` downloads files when it is made."""


def family_names() -> tuple[str, ...]:
    """All families that the library supports."""
    from renderers import base

    base._populate_registry()
    return tuple(sorted(set(base.RENDERER_REGISTRY) - {"default"}))


def known_family(tokenizer: ChatTokenizer) -> str | None:
    """The family of a tokenizer: by its model's name, or because the family renders as the model's own template
    does."""
    from renderers.base import MODEL_RENDERER_MAP

    if (named := MODEL_RENDERER_MAP.get(getattr(tokenizer, "name_or_path", ""))) is not None:
        return str(named)
    own = [_own(tokenizer, messages, tools) for messages, tools in RECOGNISED_BY]
    tried = [name for name in family_names() if name not in NEVER_TRIED]
    return next((name for name in tried if None not in own and _theirs(tokenizer, name) == own), None)


def make_family(tokenizer: ChatTokenizer, name: str, thinking: Thinking) -> FamilyRenderer:
    """The renderer of a family. Raises ModelError if the tokenizer does not belong to the family."""
    if name not in family_names():
        raise ModelError(
            f"there is no renderer for a family of models {name!r}",
            remedy=f"set model.renderer to auto, template, or one of: {', '.join(family_names())}",
        )
    try:
        seen = LibraryTokenizer(tokenizer)
        return FamilyRenderer(name, _create(seen, name, thinking), seen)
    except LIBRARY_ERRORS as error:
        raise ModelError(
            f"the tokenizer cannot be used as one of {name!r}: {error}",
            remedy="set model.renderer to template, which uses the model's own chat template",
        ) from error


def _create(tokenizer: ChatTokenizer | LibraryTokenizer, name: str, thinking: Thinking) -> Any:
    from renderers import create_renderer
    from renderers.configs import _config_class_for

    retained = {"thinking_retention": "all"} if thinking is Thinking.KEEP else {}
    return create_renderer(tokenizer, _config_class_for(name)(**retained))


def _own(tokenizer: ChatTokenizer, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int] | None:
    """The ids of a conversation by the model's own template. None if the template refuses it."""
    try:
        text = tokenizer.apply_chat_template(
            template_messages(messages), tools=template_tools(tools), add_generation_prompt=True, tokenize=False
        )
    except (TemplateError, *LIBRARY_ERRORS):
        return None
    return list(tokenizer.encode(text, add_special_tokens=False))


def _theirs(tokenizer: ChatTokenizer, name: str) -> list[list[int]] | None:
    """The ids of all conversations by a family's renderer. None if the tokenizer lacks the family's tokens."""
    try:
        family = _create(tokenizer, name, Thinking.TEMPLATE)
        return [
            list(
                family.render_ids(template_messages(messages), tools=template_tools(tools), add_generation_prompt=True)
            )
            for messages, tools in RECOGNISED_BY
        ]
    except (ConversationError, *LIBRARY_ERRORS):
        return None
