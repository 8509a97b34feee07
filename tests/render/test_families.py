"""Families of the `renderers` library behind our port, on tiny tokenizers that carry the families' special tokens."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from templates import HERMES

pytest.importorskip("renderers")

from tokenizers import AddedToken

from loopwright.errors import ContextError, ConversationError, ModelError
from loopwright.render.chat_template import ChatTemplateRenderer
from loopwright.render.choose import make_renderer
from loopwright.render.families import make_family
from loopwright.render.family_renderer import FamilyRenderer
from loopwright.testing.tiny import CHATML, tiny_tokenizer
from loopwright.types import ContentDelta, Message, Parsed, Thinking, ToolCall, parsed_of

FEW = settings(max_examples=30)
"""For each of many families: their renderers are slow."""

MARKERS = {
    "qwen3": "<tool_call> </tool_call> <tool_response> </tool_response> <think> </think>",
    "qwen3-vl": "<tool_call> </tool_call> <tool_response> </tool_response> <think> </think> "
    "<|image_pad|> <|video_pad|> <|vision_start|> <|vision_end|>",
    "prime-qwen3": "<tool_call> </tool_call> <tool_response> </tool_response> <think> </think>",
    "glm-5": "[gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|> <think> </think> "
    "<tool_call> </tool_call> <tool_response> </tool_response> <arg_key> </arg_key> <arg_value> </arg_value>",
    "llama-3": "<|begin_of_text|> <|start_header_id|> <|end_header_id|> <|end_of_text|> <|eom_id|> <|eot_id|>",
    "kimi-k2": "<|im_assistant|> <|im_middle|> <|im_system|> <|im_user|> <|tool_call_argument_begin|> "
    "<|tool_call_begin|> <|tool_call_end|> <|tool_calls_section_begin|> <|tool_calls_section_end|> [EOS]",
    "minimax-m2": "]~!b[ ]~b] [e~[ <minimax:tool_call> </minimax:tool_call> <think> </think>",
}
STABLE = ("qwen3-vl", "prime-qwen3", "llama-3", "kimi-k2")
"""Families whose full renderings leave earlier messages as they were."""

ADD = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
USER: Message = {"role": "user", "content": "12+7?"}
SYSTEM: Message = {"role": "system", "content": "Be brief."}
AGAIN: Message = {"role": "user", "content": "sure?"}
RESULT: Message = {"role": "tool", "content": "19", "tool_call_id": "functions.add:0", "name": "add"}

CALL = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'

words = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)
texts = st.lists(words, min_size=1, max_size=3).map(" ".join) | st.sampled_from(["naïve €", "12+7", "a < b"])


@cache
def tokenizer_of(family: str) -> Any:
    tokenizer = tiny_tokenizer(CHATML)
    markers = [AddedToken(marker, normalized=False) for marker in MARKERS[family].split()]
    tokenizer.add_tokens(markers)
    return tokenizer


@cache
def family(name: str, thinking: Thinking = Thinking.KEEP) -> FamilyRenderer:
    return make_family(tokenizer_of(name), name, thinking)


def called(content: str, argument: str) -> Message:
    call = {"id": "functions.add:0", "name": "add", "arguments": json.dumps({"a": argument}, ensure_ascii=False)}
    return {"role": "assistant", "content": content, "tool_calls": (call,)}


def sampled(renderer: FamilyRenderer, messages: list[Message]) -> tuple[int, ...]:
    rendered = renderer.answered(messages, [ADD])
    assert rendered is not None
    return rendered[1]


@pytest.mark.parametrize("name", STABLE)
@settings(FEW)
@given(content=texts, argument=texts, answer=texts)
def test_incremental_encoding_equals_the_full_rendering_of_stable_families(
    name: str, content: str, argument: str, answer: str
) -> None:
    renderer = family(name)
    assert renderer.is_prefix_stable
    messages: list[Message] = [SYSTEM, USER]
    stream: tuple[int, ...] | None = renderer.render(messages, [ADD])
    for reply, new in (
        (called("" if name == "llama-3" else content, argument), {**RESULT, "content": answer}),
        ({"role": "assistant", "content": content}, {"role": "user", "content": answer}),
    ):
        assert stream is not None
        ids = (*stream, *sampled(renderer, [*messages, reply]))
        stream = renderer.extend(ids, [*messages, reply], [new], [ADD])
        messages = [*messages, reply, new]
        assert stream == renderer.render(messages, [ADD])


@pytest.mark.parametrize("name", MARKERS)
@settings(FEW)
@given(content=texts, ended=st.booleans())
def test_a_sampled_stream_stays_as_it_is(name: str, content: str, ended: bool) -> None:
    renderer = family(name)
    spelled = [t for sign in content for t in tokenizer_of(name).encode(sign, add_special_tokens=False)]
    stream = (*renderer.render([USER], [ADD]), *spelled, *([renderer.stop_token_ids[0]] if ended else []))
    extended = renderer.extend(stream, [USER, {"role": "assistant", "content": content}], [AGAIN], [ADD])
    if extended is None:  # ended inside a thought that the prompt began: no context has such an end
        assert ended
        assert renderer.parse(stream[-len(spelled) - 1 :], [ADD]).reasoning
        return
    assert extended[: len(stream)] == stream
    assert "sure?" in renderer.text(extended[len(stream) :])


@pytest.mark.parametrize("name", sorted(set(MARKERS) - {"glm-5", "minimax-m2"}))
def test_a_text_is_read_without_a_prompt(name: str) -> None:
    """What the agent has begun is no prompt that opens a thought. The families left out have no place for it."""
    renderer = family(name)
    assert renderer.begin("Sure.") is not None
    assert "It is 42." in renderer.parse(renderer.plain("It is 42."), (), ()).content


@pytest.mark.parametrize("name", MARKERS)
def test_calls_are_read_as_they_were_written(name: str) -> None:
    renderer = family(name)
    reply = {**called("", "naïve €"), "reasoning": "hm"}
    parsed = renderer.parse(sampled(renderer, [USER, reply]), [ADD], renderer.render([USER], [ADD]))
    assert [(call.name, json.loads(call.arguments)) for call in parsed.tool_calls] == [("add", {"a": "naïve €"})]
    assert parsed.content == ""


def test_the_model_s_spelling_of_arguments_survives() -> None:
    ids = tokenizer_of("qwen3").encode('<tool_call>{"name":"add" ,"arguments":{"a" :  "1"}}</tool_call><|im_end|>')
    assert family("qwen3").parse(ids, [ADD]) == Parsed(tool_calls=(ToolCall("add", '{"a" :  "1"}'),))


def test_parameters_are_arguments_by_another_name() -> None:
    ids = tokenizer_of("qwen3").encode('<tool_call>{"name": "add", "parameters": {"a" : "1"}}</tool_call><|im_end|>')
    assert family("qwen3").parse(ids, [ADD]) == Parsed(tool_calls=(ToolCall("add", '{"a" : "1"}'),))


@pytest.mark.parametrize(
    "text", ["see <tool_call>{oops</tool_call>", "see <tool_call>{", '<tool_call>{"arguments": {}}</tool_call>']
)
def test_a_malformed_call_is_content(text: str) -> None:
    ids = tokenizer_of("qwen3").encode(f"{text}<|im_end|>")
    parsed = family("qwen3").parse(ids, [ADD])
    assert parsed.tool_calls == ()
    assert parsed.content.replace("\n", " ") == text


def test_without_tools_nothing_is_a_call() -> None:
    text = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    ids = tokenizer_of("qwen3").encode(f"{text}<|im_end|>")
    assert family("qwen3").parse(ids, ()) == Parsed(text)


@pytest.mark.parametrize("name", MARKERS)
@settings(FEW)
@given(
    parts=st.lists(
        texts | st.sampled_from(["<", "</think>", "<think>", "<tool_call>", "</tool_call>", "{"]), max_size=6
    )
)
def test_pieces_add_up_to_the_whole(name: str, parts: list[str]) -> None:
    renderer = family(name)
    ids = tokenizer_of(name).encode("".join(parts), add_special_tokens=False)
    for size in (1, 3, len(ids) or 1):
        parser = renderer.parser([ADD])
        deltas = [delta for place in range(0, len(ids), size) for delta in parser.feed(ids[place : place + size])]
        assert parsed_of([*deltas, *parser.finish()]) == renderer.parse(ids, [ADD])


def test_a_call_without_any_marker_is_not_told_as_content() -> None:
    """Llama's calls are bare JSON: until the end it may be one."""
    ids = tokenizer_of("llama-3").encode(
        '{"name": "add", "parameters": {"a": "1"}}<|eot_id|>', add_special_tokens=False
    )
    parser = family("llama-3").parser([ADD])
    assert [delta for token in ids for delta in parser.feed([token])] == []
    assert parsed_of(parser.finish()) == Parsed(tool_calls=(ToolCall("add", '{"a": "1"}'),))


def test_content_is_told_while_it_is_sampled() -> None:
    parser = family("qwen3").parser([ADD])
    ids = tokenizer_of("qwen3").encode("The answer is 19. " * 20, add_special_tokens=False)
    told = [delta for token in ids for delta in parser.feed([token])]
    assert len(told) > 5
    assert all(isinstance(delta, ContentDelta) for delta in told)


def test_thoughts_are_the_template_s_or_kept() -> None:
    ids = tokenizer_of("qwen3").encode("<think>\neasy\n</think>\n\n19<|im_end|>", add_special_tokens=False)
    for thinking in Thinking:
        renderer = family("qwen3", thinking)
        stream = (*renderer.render([USER]), *ids)
        parsed = renderer.parse(ids)
        assert parsed == Parsed("19", "easy")
        assert (renderer.extend(stream, [USER, parsed.message], [AGAIN]) is None) == (thinking is Thinking.TEMPLATE)
        assert renderer.extend(stream, [USER, parsed.message], [RESULT]) is not None


def test_a_family_is_known_by_its_model_s_name_or_by_what_it_renders() -> None:
    named = tokenizer_of("llama-3")
    assert isinstance(make_renderer(tiny_tokenizer()), ChatTemplateRenderer)
    assert isinstance(make_renderer(named), ChatTemplateRenderer), "its template is plain ChatML"
    assert isinstance(make_renderer(named, "template"), ChatTemplateRenderer)
    assert isinstance(make_renderer(named, "llama-3"), FamilyRenderer)
    named.name_or_path = "meta-llama/Llama-3.2-1B-Instruct"
    assert make_renderer(named).name == "llama-3"
    named.name_or_path = ""

    local = tiny_tokenizer(qwen3_template())
    local.add_tokens([AddedToken(marker, normalized=False) for marker in MARKERS["qwen3"].split()])
    assert make_renderer(local).name in ("qwen3", "qwen3-vl")


def qwen3_template() -> str:
    """HERMES with the words of Qwen3's."""
    from renderers.qwen3 import _TOOLS_FOOTER, _TOOLS_HEADER

    before, after = json.dumps(_TOOLS_HEADER), json.dumps(_TOOLS_FOOTER)
    return HERMES.replace("'# Tools\\n<tools>'", before).replace(
        "'\\n</tools>\\nCalls go into <tool_call></tool_call>.<|im_end|>\\n'", f"{after} + '<|im_end|>\\n'"
    )


def test_what_cannot_fit_is_refused_by_its_size() -> None:
    huge: Message = {"role": "user", "content": "many words " * 10_000}
    with pytest.raises(ContextError, match="at least"):
        family("qwen3").render([huge], most=1000)
    stream = (*family("qwen3").render([USER]), 5)
    with pytest.raises(ContextError, match="at least"):
        family("qwen3").extend(stream, [USER, {"role": "assistant", "content": "x"}], [huge], most=1000)


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(ModelError, match="no renderer for a family of models 'qwen'") as caught:
        make_renderer(tiny_tokenizer(), "qwen")
    assert "llama-3" in caught.value.remedy
    with pytest.raises(ModelError, match="cannot be used as one of 'qwen3'"):
        make_renderer(tiny_tokenizer(), "qwen3")
    with pytest.raises(ConversationError, match="qwen3 models know no conversation of"):
        family("qwen3").render([])


def test_without_the_library_ours_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert isinstance(make_renderer(tokenizer_of("qwen3")), ChatTemplateRenderer)
    with pytest.raises(ModelError, match="needs the package renderers") as caught:
        make_renderer(tokenizer_of("qwen3"), "qwen3")
    assert "loopwright[renderers]" in caught.value.remedy


@pytest.mark.parametrize("name", MARKERS)
@settings(FEW)
@given(begun=texts | st.sampled_from(["<|im_end|>", "[EOS]"]), rest=texts)
def test_an_answer_goes_on_from_what_the_agent_wrote(name: str, begun: str, rest: str) -> None:
    renderer = family(name)
    beginning, prompt = renderer.begin(begun), renderer.render([USER], [ADD])
    assert (beginning is None) == (name in ("glm-5", "minimax-m2"))  # their prompts begin a thought
    if beginning is None:
        return
    written = tokenizer_of(name).decode(beginning)
    assert written.removeprefix("<think>\n\n</think>\n\n") == begun
    assert not set(beginning) & set(renderer.stop_token_ids)
    sampled = tuple(tokenizer_of(name).encode(rest, add_special_tokens=False))
    stream = (*prompt, *beginning, *sampled, renderer.stop_token_ids[0])
    extended = renderer.extend(stream, [USER, {"role": "assistant", "content": begun + rest}], [AGAIN], [ADD])
    assert extended is not None
    assert extended[: len(stream)] == stream
