"""Renders with a transformers tokenizer and its chat template.

The invariant (T5): sampled text is never tokenised again. To continue a conversation, only the joint (the text that the
template puts between the sampled reply and the model's next turn) is rendered and encoded, and is appended to the
stream. If the template would write an earlier message differently now, there is no joint.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopwright.render.grammar import ThoughtSyntax, answer_grammar
from loopwright.render.hermes import THINK, THINK_END, Syntax, hermes_calls
from loopwright.render.hermes_stream import HermesStream
from loopwright.render.joint import Joints
from loopwright.render.siblings import RenderedOnce
from loopwright.render.template import ChatTemplate
from loopwright.render.vocabulary import ChatTokenizer, Vocabulary
from loopwright.types import AnswerForm, Constraint, Message, Parsed, Thinking, Tool, parsed_of


class ChatTemplateRenderer:
    """A `Renderer` over one tokenizer."""

    name = "chat template"

    def __init__(self, tokenizer: ChatTokenizer, thinking: Thinking = Thinking.TEMPLATE) -> None:
        self._vocabulary = Vocabulary(tokenizer)
        self._template = ChatTemplate(tokenizer, self._vocabulary.control)
        self._joints = Joints(self._template, thinking, self._vocabulary.control)
        self._stop_token_ids = self._derive_stop_token_ids(tokenizer)
        self._rendered = self._render if self._template.tells_time else RenderedOnce(self._render)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The tokenizer's end of sequence, and the token with which the template ends an assistant's turn."""
        return self._stop_token_ids

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, most: int | None = None
    ) -> tuple[int, ...]:
        return self._rendered(messages, tools, most)

    def extend(
        self,
        stream: Sequence[int],
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        most: int | None = None,
    ) -> tuple[int, ...] | None:
        """See the port. The last message of `history` is the assistant's, and its tokens are the end of `stream`."""
        joint = self._joints.between(history, new, tools)
        if joint is None:
            return None
        self._vocabulary.check_size(joint, most, before=len(stream))
        added = self._vocabulary.encode(joint)
        # If the model ended its turn itself, the joint's end token is dropped. A reply that was cut off has no end
        # token, and gets the template's as context.
        if stream and stream[-1] in self._stop_token_ids and added[:1] and added[0] in self._stop_token_ids:
            added = added[1:]
        return (*stream, *added)

    def answered(
        self, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        before = self._template.write(messages[:-1], tools)
        whole = self._template.write(messages, tools, opening=False)
        if not whole.startswith(before):
            return None
        answer = self._vocabulary.encode(whole.removeprefix(before))
        ends = [place for place, token in enumerate(answer) if token in self._stop_token_ids]
        # Text that the template writes after the end of a turn is context of the next turn.
        return self._vocabulary.encode(before), answer[: ends[0] + 1] if ends else answer

    def parse(
        self, ids: Sequence[int], tools: Sequence[Tool] | None = None, prompt: Sequence[int] | None = None
    ) -> Parsed:
        parser = self.parser(tools, prompt)
        return parsed_of([*parser.feed(ids), *parser.finish()])

    def parser(self, tools: Sequence[Tool] | None = None, prompt: Sequence[int] | None = None) -> HermesStream:
        syntax = Syntax(
            calls=tools is None or len(tools) > 0, thoughts=self._template.thoughts, thinking=self._thinks_after(prompt)
        )
        return HermesStream(self._vocabulary.detokenizer(), syntax)

    def constraint(self, form: AnswerForm, prompt: Sequence[int]) -> Constraint:
        mark = self._vocabulary.mark
        opened = self._thinks_after(prompt)
        thought = ThoughtSyntax(mark(THINK), mark(THINK_END), opened) if self._template.thoughts or opened else None
        return answer_grammar(form, hermes_calls(mark), thought)

    def text(self, ids: Sequence[int]) -> str:
        return self._vocabulary.text(ids)

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        return self._vocabulary.pieces(ids)

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool], most: int | None) -> tuple[int, ...]:
        text = self._template.write(messages, tools)
        self._vocabulary.check_size(text, most)
        return self._vocabulary.encode(text)

    def _thinks_after(self, prompt: Sequence[int] | None) -> bool:
        if prompt is None or not self._template.thoughts:
            return self._template.opens_thought
        return "".join(self._vocabulary.pieces(prompt[-PROMPT_TAIL:])).rstrip().endswith(THINK)

    def _derive_stop_token_ids(self, tokenizer: ChatTokenizer) -> tuple[int, ...]:
        closing = self._vocabulary.encode(self._template.closing)[:1]
        ends = [end for end in closing if end in tokenizer.added_tokens_decoder]
        if tokenizer.eos_token_id is not None:
            ends.insert(0, int(tokenizer.eos_token_id))
        return tuple(dict.fromkeys(ends))


PROMPT_TAIL = 16
"""If a prompt begins a thought, the mark for it is within this many last ids."""
