"""Rendering through a transformers tokenizer and its chat template.

The invariant (T5): what was sampled is never tokenised again. To continue a conversation, only the joint (what the
template puts between the sampled reply and the model's next turn) is rendered and encoded, and it is appended to the
stream as it stands. Where the template would have written an earlier message differently, no joint exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from loopwright.errors import ModelError
from loopwright.render.bytes import byte_level
from loopwright.types import Message


class ChatTokenizer(Protocol):
    """What is asked of a transformers tokenizer."""

    @property
    def chat_template(self) -> Any: ...
    @property
    def eos_token_id(self) -> Any: ...
    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...
    def apply_chat_template(self, conversation: Any, /, *, add_generation_prompt: bool, tokenize: bool) -> Any: ...
    def encode(self, text: str, /, *, add_special_tokens: bool) -> Any: ...
    def decode(self, ids: Any, /, *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> Any: ...
    def convert_ids_to_tokens(self, ids: Any, /) -> Any: ...


class ChatTemplateRenderer:
    """A `Renderer` over one tokenizer."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        if not tokenizer.chat_template:
            raise ModelError(
                "the tokenizer has no chat template, so messages cannot be turned into a prompt",
                remedy="use an instruct or chat model, or put a chat_template.jinja into the model's folder",
            )
        self._tokenizer = tokenizer
        # Siblings are asked the same: their prompt is encoded once.
        self._encode = lru_cache(maxsize=128)(self._encode_text)
        self._stop_token_ids = self._derive_stop_token_ids()

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The tokenizer's end of sequence, and the token by which the template ends an assistant's turn."""
        return self._stop_token_ids

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return self._encode(self._template(messages))

    def extend(
        self, stream: Sequence[int], history: Sequence[Message], new: Sequence[Message]
    ) -> tuple[int, ...] | None:
        """See the port. `history` ends with the assistant's message whose tokens end `stream`."""
        joint = self._joint(history, new)
        if joint is None:
            return None
        added = self._encode(joint)
        # The model ended its turn itself; a reply that was cut has no end, and gets the template's as context.
        if stream and stream[-1] in self._stop_token_ids and added[:1] and added[0] in self._stop_token_ids:
            added = added[1:]
        return (*stream, *added)

    def answered(self, messages: Sequence[Message]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """A written answer as a model would have sampled it: the prompt before it, and its tokens with their end.

        None when the template writes the earlier messages differently once they are answered.
        """
        before = self._template(messages[:-1])
        whole = self._template(messages, add_generation_prompt=False)
        if not whole.startswith(before):
            return None
        answer = self._encode(whole.removeprefix(before))
        ends = [place for place, token in enumerate(answer) if token in self._stop_token_ids]
        # What the template writes after the end of a turn is context of the next one.
        return self._encode(before), answer[: ends[0] + 1] if ends else answer

    def text(self, ids: Sequence[int]) -> str:
        return self._decode(ids, skip_special_tokens=True)

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._piece(int(token)) for token in ids)

    def _piece(self, token: int) -> str:
        piece = self._decode([token])
        if "\N{REPLACEMENT CHARACTER}" not in piece:
            return piece
        # Part of a character: on its own it is no text, so its bytes are shown.
        return byte_level(str(self._tokenizer.convert_ids_to_tokens(token)))

    def _joint(self, history: Sequence[Message], new: Sequence[Message]) -> str | None:
        """The text that the template puts after the last reply of `history`, or None if it rewrites what is before."""
        *earlier, reply = history
        content = str(reply.get("content") or "")
        sentinel = _sentinel(history, new)
        marked = self._template([*earlier, {**reply, "content": sentinel}, *new])
        if marked.count(sentinel) != 1:
            return None
        before, _, joint = marked.partition(sentinel)
        if before != self._template(earlier):
            return None
        # A template may trim a reply, which changes nothing that matters; one that cuts more (say, the thinking of
        # earlier turns) means the model to see another history than the sampled stream.
        real = self._template([*history, *new])
        kept = real.removeprefix(before).removesuffix(joint)
        same = real == before + kept + joint and kept.strip() == content.strip()
        return joint if same else None

    def _derive_stop_token_ids(self) -> tuple[int, ...]:
        probe: list[Message] = [{"role": "user", "content": "?"}]
        sentinel = _sentinel(probe, ())
        answered = self._template([*probe, {"role": "assistant", "content": sentinel}], add_generation_prompt=False)
        closing = self._encode(answered.partition(sentinel)[2])[:1]
        ends = [end for end in closing if end in self._tokenizer.added_tokens_decoder]
        if self._tokenizer.eos_token_id is not None:
            ends.insert(0, int(self._tokenizer.eos_token_id))
        return tuple(dict.fromkeys(ends))

    def _template(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        conversation = [dict(message) for message in messages]
        return str(
            self._tokenizer.apply_chat_template(
                conversation, add_generation_prompt=add_generation_prompt, tokenize=False
            )
        )

    def _encode_text(self, text: str) -> tuple[int, ...]:
        # The template writes every special token itself.
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return str(
            self._tokenizer.decode(
                list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
            )
        )


def _sentinel(*conversations: Sequence[Message]) -> str:
    """A text that occurs in none of the messages, and that no template has a reason to change."""
    sentinel = "loopwright-reply"
    texts = [str(message) for conversation in conversations for message in conversation]
    while any(sentinel in text for text in texts):
        sentinel += "-x"
    return sentinel
