"""What a naive re-tokenisation would have got wrong, measured on conversations whose tokens are known."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from templates import FORGETFUL, HERMES

from loopwright.render.chat_template import ChatTemplateRenderer
from loopwright.render.drift import ConversationDrift, chain_drift, conversation_drift
from loopwright.testing.tiny import tiny_tokenizer
from loopwright.types import Message

TOKENIZER = tiny_tokenizer()
RENDERER = ChatTemplateRenderer(TOKENIZER)
END = RENDERER.stop_token_ids[-1]
ADD = {"name": "add", "description": "Adds.", "parameters": {}}
texts = st.text(max_size=12) | st.sampled_from(["The answer is 19.", "naïve €"])


def canonical(text: str) -> list[int]:
    return [*TOKENIZER.encode(text, add_special_tokens=False), END]


def by_character(text: str) -> list[int]:
    return [*(t for sign in text for t in TOKENIZER.encode(sign, add_special_tokens=False)), END]


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=3))
def test_what_was_sampled_canonically_does_not_drift(turns: list[tuple[str, str]]) -> None:
    messages: list[Message] = []
    for question, answer in turns:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    drift = conversation_drift(messages, RENDERER)
    assert (drift.chains, drift.forks, drift.drift.wrong) == (1, 0, 0)
    with_ids = [{**m, "ids": canonical(m["content"])} if m["role"] == "assistant" else m for m in messages]
    assert conversation_drift(with_ids, RENDERER) == drift


def test_another_spelling_is_counted_token_by_token() -> None:
    sampled = by_character("The answer is 19.")
    written = canonical("The answer is 19.")
    messages: list[Message] = [
        {"role": "user", "content": "12+7?"},
        {"role": "assistant", "content": "The answer is 19.", "ids": sampled},
        {"role": "user", "content": "sure?"},
        {"role": "assistant", "content": "19", "ids": canonical("19")},
    ]
    drift = conversation_drift(messages, RENDERER).drift
    assert len(sampled) > len(written)
    assert drift.lost - drift.invented == len(sampled) - len(written)
    assert drift.wrong == drift.lost > 0
    assert drift.first is not None
    assert drift.first.place == 0
    assert RENDERER.pieces(drift.first.recorded[:2]) == ("T", "h")
    assert RENDERER.pieces(drift.first.naive[:1]) != ("T",)


def test_a_call_that_is_serialised_again_drifts() -> None:
    renderer = ChatTemplateRenderer(tiny_tokenizer(HERMES))
    prompt = renderer.render([{"role": "user", "content": "12+7?"}], [ADD])
    sampled = canonical('<tool_call>{"name":"add","arguments":{"a":12,"b":7}}</tool_call>')
    parsed = renderer.parse(sampled, [ADD])
    messages = [{"role": "user", "content": "12+7?"}, parsed.message]
    begin: dict[str, Any] = {"first_sampled": len(prompt), "first_reply": 1}
    drift = chain_drift((*prompt, *sampled), messages, renderer, [ADD], **begin)
    assert drift.tokens == len(sampled)
    assert drift.invented > 0, "the template writes spaces that the model did not"
    # The first prompt is no part of it, so that a recording without its tools can be measured too.
    assert chain_drift((*prompt, *sampled), messages, renderer, **begin) == drift


def test_what_the_template_refuses_to_write_again_is_all_lost() -> None:
    """As Llama's does with two calls at once: whoever measures a rollout must not end with it."""
    one_call = "{% for m in messages %}{% if m['tool_calls'] and m['tool_calls'] | length > 1 %}"
    refusal = "{{ raise_exception('one call at a time') }}{% endif %}{% endfor %}"
    renderer = ChatTemplateRenderer(tiny_tokenizer(one_call + refusal + HERMES))
    prompt = renderer.render([{"role": "user", "content": "12+7?"}], [ADD])
    sampled = canonical('<tool_call>{"name":"add","arguments":{}}</tool_call>' * 2)
    messages = [{"role": "user", "content": "12+7?"}, renderer.parse(sampled, [ADD]).message]
    drift = chain_drift((*prompt, *sampled), messages, renderer, [ADD], first_sampled=len(prompt), first_reply=1)
    assert (drift.tokens, drift.lost, drift.invented) == (len(sampled), len(sampled), 0)
    assert drift.first is not None
    assert (drift.first.place, drift.first.naive) == (0, ())


def test_a_template_that_forgets_thoughts_forks_and_what_it_forgot_is_no_drift() -> None:
    renderer = ChatTemplateRenderer(tiny_tokenizer(FORGETFUL))
    messages = json.loads(
        """[{"role": "user", "content": "12+7?"},
            {"role": "assistant", "content": "19", "reasoning": "easy"},
            {"role": "user", "content": "sure?"},
            {"role": "assistant", "content": "yes"}]"""
    )
    found = conversation_drift(messages, renderer)
    assert (found.chains, found.forks, found.drift.wrong) == (2, 1, 0)


def test_a_conversation_without_replies_has_no_chain() -> None:
    assert conversation_drift([{"role": "user", "content": "?"}], RENDERER) == ConversationDrift(
        0, 0, conversation_drift([], RENDERER).drift
    )
