"""Chooses the renderer of a model: one of the `renderers` library if it knows the family, otherwise ours.

Our renderer writes with the model's own chat template and reads tool calls in the Hermes format. It needs no other
package.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from loopwright.errors import ModelError
from loopwright.ports import Renderer
from loopwright.render.chat_template import ChatTemplateRenderer
from loopwright.render.vocabulary import ChatTokenizer
from loopwright.types import Thinking

AUTO, TEMPLATE = "auto", "template"


def make_renderer(tokenizer: ChatTokenizer, choice: str = AUTO, thinking: Thinking = Thinking.TEMPLATE) -> Renderer:
    """The renderer that `choice` names: `auto`, `template` (ours), or a family of the library."""
    if choice == TEMPLATE:
        return ChatTemplateRenderer(tokenizer, thinking)
    if importlib.util.find_spec("renderers") is None:
        if choice == AUTO:
            return ChatTemplateRenderer(tokenizer, thinking)
        raise ModelError(
            f"model.renderer {choice!r} needs the package renderers", remedy="pip install 'loopwright[renderers]'"
        )
    if choice == AUTO and not _may_be_known(tokenizer):
        return ChatTemplateRenderer(tokenizer, thinking)
    from loopwright.render.families import known_family, make_family

    family = known_family(tokenizer) if choice == AUTO else choice
    return ChatTemplateRenderer(tokenizer, thinking) if family is None else make_family(tokenizer, family, thinking)


def _may_be_known(tokenizer: ChatTokenizer) -> bool:
    """Whether the library may know the model, so that loading it (one second) is worthwhile. It knows models by name,
    or by a template that shows tools."""
    name = str(getattr(tokenizer, "name_or_path", ""))
    has_public_name = "/" in name and not Path(name).exists()
    return has_public_name or "tools" in str(tokenizer.chat_template)
