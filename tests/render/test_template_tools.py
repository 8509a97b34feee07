"""Conversations with tools through chat templates: sampled streams are extended, whatever was sampled (T1, T5, T6)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from templates import FOREIGN, FORGETFUL, HERMES, PREFILLED, STRICT

from loopwright.errors import ConversationError
from loopwright.render.chat_template import ChatTemplateRenderer
from loopwright.render.plain_tools import call_text
from loopwright.testing.tiny import CHATML, tiny_tokenizer
from loopwright.types import Message, Parsed, Thinking, ToolCall, parsed_of

ADD = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}}
USER: Message = {"role": "user", "content": "12+7?"}

TOKENIZERS = {name: tiny_tokenizer(template) for name, template in (("chatml", CHATML), ("hermes", HERMES))}
RENDERERS = {name: ChatTemplateRenderer(tokenizer) for name, tokenizer in TOKENIZERS.items()}
END = RENDERERS["chatml"].stop_token_ids[-1]

texts = st.text(max_size=12) | st.sampled_from(["naïve €", "loopwright-reply", "<tool_call>", "12+7", "👩‍👩‍👧"])
values = st.none() | st.booleans() | st.integers(-99, 99) | texts
calls = st.lists(st.tuples(st.sampled_from(["add", "look_up"]), st.dictionaries(texts, values, max_size=2)), max_size=2)
turns = st.lists(st.tuples(texts, calls, texts), min_size=1, max_size=3)


def spell(tokenizer: Any, text: str, how: str) -> tuple[int, ...]:
    """`text` as a model may have sampled it: canonically, or character by character, or byte by byte."""
    if how == "canonical":
        return tuple(tokenizer.encode(text, add_special_tokens=False))
    if how == "characters":
        return tuple(token for character in text for token in tokenizer.encode(character, add_special_tokens=False))
    alphabet = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return tuple(tokenizer.convert_tokens_to_ids(sign) for word, _ in alphabet for sign in word)


def written(content: str, asked: list[tuple[str, dict[str, Any]]]) -> str:
    return "\n".join([*([content] if content else []), *(call_text(name, json.dumps(value)) for name, value in asked)])


def results(parsed: Parsed, text: str) -> list[Message]:
    if not parsed.tool_calls:
        return [{"role": "user", "content": text}]
    return [{"role": "tool", "content": text, "tool_call_id": "", "name": call.name} for call in parsed.tool_calls]


@pytest.mark.parametrize("name", RENDERERS)
@pytest.mark.parametrize("arguments", [r'{"a": "\ud800"}', '{"a": 1e400}', f'{{"a": [-{"9" * 400}]}}'])
def test_arguments_on_which_readers_of_json_differ_are_no_other_history(name: str, arguments: str) -> None:
    renderer, tokenizer = RENDERERS[name], TOKENIZERS[name]
    prompt = renderer.render([USER], [ADD])
    sampled = (*spell(tokenizer, call_text("add", arguments), "canonical"), END)
    said = renderer.parse(sampled, [ADD])
    assert said.tool_calls == (ToolCall("add", arguments),)
    stream, history, new = (*prompt, *sampled), [USER, said.message], results(said, "?")
    extended = renderer.extend(stream, history, new, [ADD])
    assert extended is not None
    assert extended[: len(stream)] == stream
    assert renderer.render([*history, *new], [ADD])


@pytest.mark.parametrize("name", RENDERERS)
@given(turns=turns, how=st.sampled_from(["canonical", "characters", "bytes"]), ended=st.booleans())
def test_sampled_ids_stay_and_only_what_is_new_is_encoded(
    name: str, turns: list[tuple[str, list[tuple[str, dict[str, Any]]], str]], how: str, ended: bool
) -> None:
    renderer, tokenizer = RENDERERS[name], TOKENIZERS[name]
    messages: list[Message] = [USER]
    stream = renderer.render(messages, [ADD])
    for content, asked, answer in turns:
        sampled = (*spell(tokenizer, written(content, asked), how), *([END] if ended else []))
        parsed = renderer.parse(sampled, [ADD])
        assert [(call.name, json.loads(call.arguments)) for call in parsed.tool_calls[-len(asked) :]] == asked or (
            not asked or "<tool_call>" in content
        )
        new = results(parsed, answer)
        stream = (*stream, *sampled)
        extended = renderer.extend(stream, [*messages, parsed.message], new, [ADD])
        assert extended is not None
        assert extended[: len(stream)] == stream
        messages = [*messages, parsed.message, *new]
        stream = extended


@pytest.mark.parametrize("name", RENDERERS)
@given(turns=turns, closing=texts)
def test_incremental_encoding_equals_the_full_rendering(
    name: str, turns: list[tuple[str, list[tuple[str, dict[str, Any]]], str]], closing: str
) -> None:
    """A reply that was sampled as the template writes it leaves no trace of having been sampled."""
    renderer = RENDERERS[name]
    messages: list[Message] = [{"role": "system", "content": closing}, USER]
    stream = renderer.render(messages, [ADD])
    for content, asked, answer in turns:
        listed = tuple({"id": "c", "name": each, "arguments": json.dumps(value)} for each, value in asked)
        reply = {"role": "assistant", "content": content, **({"tool_calls": listed} if listed else {})}
        rendered = renderer.answered([*messages, reply], [ADD])
        assert rendered is not None
        prompt, sampled = rendered
        assert prompt == stream
        new = results(Parsed("", tool_calls=tuple(ToolCall(each, "{}") for each, _ in asked)), answer)
        extended = renderer.extend((*stream, *sampled), [*messages, reply], new, [ADD])
        if extended is None:  # a text that looks like a call is read as one, and so the reply was rewritten
            assert "<tool_call>" in content
            return
        messages = [*messages, reply, *new]
        assert extended == renderer.render(messages, [ADD])
        stream = extended


@given(text=st.lists(texts | st.just("</tool_call>") | st.just(call_text("add", '{"a": "€"}'))).map("".join))
def test_token_by_token_and_at_once_say_the_same(text: str) -> None:
    renderer, tokenizer = RENDERERS["chatml"], TOKENIZERS["chatml"]
    for how in ("canonical", "bytes"):
        ids = spell(tokenizer, text, how)
        parser = renderer.parser([ADD])
        deltas = [parser.feed([token]) for token in ids]
        assert not any("\N{REPLACEMENT CHARACTER}" in str(delta) for delta in deltas) or "�" in text
        assert parsed_of([*(one for each in deltas for one in each), *parser.finish()]) == renderer.parse(ids, [ADD])
        if "<|" not in text:
            assert renderer.parse(ids, ()).content == text


def test_half_a_character_at_the_end_is_marked_and_not_lost() -> None:
    ids = spell(TOKENIZERS["chatml"], "a€", "bytes")[:-1]
    parser = RENDERERS["chatml"].parser(())
    assert parser.feed(ids[:1])
    assert parser.feed(ids[1:]) == []
    assert parsed_of(parser.finish()).content == "\N{REPLACEMENT CHARACTER}"


def test_tools_stand_in_the_system_message_of_a_template_that_knows_none() -> None:
    renderer = RENDERERS["chatml"]
    text = "".join(renderer.pieces(renderer.render([{"role": "system", "content": "Be brief."}, USER], [ADD])))
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou have tools.")
    assert '"name": "add"' in text
    assert text.count("<|im_start|>system") == 1
    assert renderer.render([USER], ()) == tuple(
        TOKENIZERS["chatml"].encode("<|im_start|>user\n12+7?<|im_end|>\n<|im_start|>assistant\n")
    )


CALLED: list[Message] = [
    USER,
    {"role": "assistant", "content": "", "tool_calls": ({"id": "1", "name": "add", "arguments": '{"a":1}'},)},
    {"role": "tool", "content": "19", "tool_call_id": "1", "name": "add"},
    {"role": "tool", "content": "20", "tool_call_id": "2", "name": "add"},
]


def test_a_template_s_own_way_is_used_where_its_calls_can_be_read() -> None:
    def text(template: str) -> str:
        renderer = ChatTemplateRenderer(tiny_tokenizer(template))
        return "".join(renderer.pieces(renderer.render(CALLED, [ADD])))

    assert "# Tools" in text(HERMES)
    both = "<tool_response>\n19\n</tool_response>\n<tool_response>\n20\n</tool_response><|im_end|>"
    assert f"<|im_start|>user\n{both}" in text(HERMES)
    assert f"<|im_start|>tool\n{both}" in text(CHATML)
    assert f"<|im_start|>user\n{both}" in text(STRICT)
    assert "You have tools." in text(FOREIGN)
    assert "[CALL]" not in text(FOREIGN)
    # The arguments are spelled as they are known, not as somebody would spell them again.
    assert '"arguments": {"a":1}' in text(CHATML)


def test_a_conversation_that_the_template_refuses_is_an_error_of_the_agent() -> None:
    picky = ChatTemplateRenderer(tiny_tokenizer(STRICT))
    with pytest.raises(ConversationError, match="unknown role critic"):
        picky.render([{"role": "critic", "content": "no"}])
    with pytest.raises(ConversationError, match="refuses a conversation of user, assistant"):
        picky.render([USER, {"role": "assistant", "content": "", "tool_calls": [{"function": {}}]}])


@pytest.mark.parametrize("template", [FORGETFUL, PREFILLED])
def test_thoughts_are_the_template_s_or_kept(template: str) -> None:
    tokenizer = tiny_tokenizer(template)
    opening = "" if template is PREFILLED else "<think>\n"
    asked = [{"role": "user", "content": "sure?"}]
    for thinking in Thinking:
        renderer = ChatTemplateRenderer(tokenizer, thinking)
        prompt = renderer.render([USER])
        sampled = (*spell(tokenizer, f"{opening}easy\n</think>\n\n19", "canonical"), END)
        parsed = renderer.parse(sampled, (), prompt)
        assert parsed == Parsed("19", "easy")
        assert renderer.parse(sampled, ()) == parsed
        stream = (*prompt, *sampled)
        extended = renderer.extend(stream, [USER, parsed.message], asked)
        if thinking is Thinking.TEMPLATE:
            assert extended is None, "the template forgets the thought, so the model would not have seen this stream"
        else:
            assert extended is not None
            assert extended[: len(stream)] == stream
            assert "".join(renderer.pieces(extended[len(stream) :])).startswith("\n<|im_start|>user\nsure?<|im_end|>")


def test_a_thought_stays_where_the_template_keeps_it() -> None:
    tokenizer = tiny_tokenizer(FORGETFUL)
    renderer = ChatTemplateRenderer(tokenizer)
    stream = (*renderer.render([USER]), *spell(tokenizer, "<think>\nhm\n</think>\n\n19", "bytes"), END)
    reply = {"role": "assistant", "content": "19", "reasoning": "hm"}
    extended = renderer.extend(stream, [USER, reply], [{"role": "tool", "content": "go on"}])
    assert extended is not None
    assert extended[: len(stream)] == stream


def test_keeping_thoughts_is_no_licence_to_rewrite_the_rest() -> None:
    counting = "{{ messages | length }}" + FORGETFUL
    renderer = ChatTemplateRenderer(tiny_tokenizer(counting), Thinking.KEEP)
    stream = (*renderer.render([USER]), END)
    assert renderer.extend(stream, [USER, {"role": "assistant", "content": ""}], [USER]) is None
