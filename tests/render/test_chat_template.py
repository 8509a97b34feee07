"""Rendering: a sampled stream is extended and never tokenised again (T5, T6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from templates import HERMES, PREFILLED

from loopwright.errors import ModelError
from loopwright.ports import Renderer
from loopwright.render.chat_template import ChatTemplateRenderer
from loopwright.testing.tiny import CHATML, tiny_tokenizer
from loopwright.types import Message

TOKENIZER = tiny_tokenizer()
RENDERER: Renderer = ChatTemplateRenderer(TOKENIZER)
END = TOKENIZER.convert_tokens_to_ids("<|im_end|>")

texts = st.text(max_size=20) | st.sampled_from(["The answer is 19.", " 12+7", "loopwright-reply", "naïve €\n\n"])
others = st.lists(st.builds(lambda text: {"role": "user", "content": text}, texts))
prompts = st.builds(lambda text, rest: [{"role": "system", "content": text}, *rest], texts, others)


def encode(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text, add_special_tokens=False))


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def test_a_template_that_tells_the_time_is_asked_each_time() -> None:
    renderer = ChatTemplateRenderer(tiny_tokenizer("{{ strftime_now('%f') }}" + CHATML))
    assert len({renderer.render([{"role": "user", "content": "Hi"}]) for _ in range(50)}) > 1


@given(prompts, st.lists(st.tuples(texts, others), min_size=1, max_size=3))
def test_canonical_completions_extend_to_the_full_rendering(
    messages: list[Message], turns: list[tuple[str, list[Message]]]
) -> None:
    stream = RENDERER.render(messages)
    for text, new in turns:
        messages = [*messages, said(text)]
        extended = RENDERER.extend((*stream, *encode(text), END), messages, new)
        messages = [*messages, *new]
        assert extended == RENDERER.render(messages)
        stream = extended


@given(prompts, texts.filter(bool), others, st.booleans())
def test_sampled_tokens_are_kept_verbatim(messages: list[Message], text: str, new: list[Message], ended: bool) -> None:
    spelled = tuple(token for character in text.encode() for token in encode_byte(character))
    stream = (*RENDERER.render(messages), *spelled, *([END] if ended else []))
    extended = RENDERER.extend(stream, [*messages, said(text)], new)
    assert extended is not None
    assert extended[: len(stream)] == stream
    asked = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in new)
    joint = f"\n{asked}<|im_start|>assistant\n"
    assert extended[len(stream) :] == encode(joint if ended else "<|im_end|>" + joint)


def encode_byte(byte: int) -> tuple[int, ...]:
    """One token per byte: a spelling that the tokenizer itself would never choose."""
    from loopwright.render.bytes import BYTES

    character = next(character for character, value in BYTES.items() if value == byte)
    return (TOKENIZER.convert_tokens_to_ids(character),)


FORGETFUL = CHATML.replace(
    "message['content'] +",
    "(message['content'].split('</think>')[-1] if message['role'] == 'assistant' else message['content']) +",
)
COUNTING = "{{ messages | length }}" + CHATML
TRIMMING = CHATML.replace("message['content']", "message['content'] | trim")
DEAF = "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}<|im_end|>{% endif %}{% endfor %}"


@pytest.mark.parametrize("template", [FORGETFUL, COUNTING, DEAF])
def test_a_template_that_rewrites_history_cannot_be_extended(template: str) -> None:
    renderer = ChatTemplateRenderer(tiny_tokenizer(template))
    history = [{"role": "user", "content": "2+2?"}, said("<think>two and two</think>4")]
    stream = (*renderer.render(history[:1]), *encode("<think>two and two</think>4"), END)
    assert renderer.extend(stream, history, [{"role": "user", "content": "sure?"}]) is None


def test_a_template_that_trims_replies_is_extended_with_the_sampled_spaces() -> None:
    renderer = ChatTemplateRenderer(tiny_tokenizer(TRIMMING))
    history = [{"role": "user", "content": "2+2?"}, said(" 4 ")]
    stream = (*renderer.render(history[:1]), *encode(" 4 "), END)
    extended = renderer.extend(stream, history, [{"role": "user", "content": "sure?"}])
    assert extended is not None
    assert extended[: len(stream)] == stream


def test_stop_tokens_are_the_end_of_sequence_and_the_end_of_turn() -> None:
    assert RENDERER.stop_token_ids == (END,)
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = "<|endoftext|>"
    assert ChatTemplateRenderer(tokenizer).stop_token_ids == (tokenizer.eos_token_id, END)


def test_a_template_without_end_of_turn_token_stops_at_the_end_of_sequence() -> None:
    plain = tiny_tokenizer("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:")
    assert ChatTemplateRenderer(plain).stop_token_ids == (END,)


def test_no_chat_template_is_a_model_error_with_a_remedy() -> None:
    with pytest.raises(ModelError, match="no chat template") as caught:
        ChatTemplateRenderer(tiny_tokenizer(None))
    assert "chat_template.jinja" in caught.value.remedy


def test_text_leaves_special_tokens_out_and_pieces_show_every_token() -> None:
    ids = (*encode("19 €"), END)
    assert RENDERER.text(ids) == "19 €"
    pieces = RENDERER.pieces(ids)
    assert len(pieces) == len(ids)
    assert pieces[-1] == "<|im_end|>"
    assert pieces[-4:-1] == ("\\xe2", "\\x82", "\\xac")
    assert "".join(pieces).startswith("19")


@given(texts)
def test_a_written_answer_reads_as_if_it_had_been_sampled(text: str) -> None:
    """The prompt is the one that sampling gets, and the answer ends where a model would have stopped."""
    asked: list[Message] = [{"role": "user", "content": "What is 12+7?"}]
    rendered = ChatTemplateRenderer(TOKENIZER).answered([*asked, said(text)])
    assert rendered is not None
    prompt, answer = rendered
    assert prompt == RENDERER.render(asked)
    assert RENDERER.text(answer) == text
    assert answer[-1] in RENDERER.stop_token_ids
    assert not set(answer[:-1]) & set(RENDERER.stop_token_ids)


def test_an_answer_after_which_the_template_rewrites_the_rest_is_refused() -> None:
    template = "{{ messages | length }}" + CHATML
    renderer = ChatTemplateRenderer(tiny_tokenizer(template))
    assert renderer.answered([{"role": "user", "content": "Hi"}, said("Hello")]) is None


@pytest.mark.parametrize("template", [CHATML, HERMES])
def test_an_answer_that_the_agent_begins_is_plain_text_after_the_prompt(template: str) -> None:
    renderer = ChatTemplateRenderer(tiny_tokenizer(template))
    begun = renderer.begin("It is <|im_end|> ")
    assert begun is not None
    assert renderer.text(begun) == "It is <|im_end|> "
    assert not set(begun) & set(renderer.stop_token_ids)


def test_no_answer_can_begin_inside_a_thought_that_the_template_would_not_write() -> None:
    assert ChatTemplateRenderer(tiny_tokenizer(PREFILLED)).begin("It is") is None
