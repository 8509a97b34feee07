"""`responses/compact`: the model summarises a conversation, in a turn that is recorded like any other.

What comes back are the user's messages and a compaction item. A history of those is another one than the conversation,
so it starts a new chain (T6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from loopwright.gateway.call import Answer, Call, Wishes
from loopwright.gateway.dialects.compaction import REQUEST, compaction_item, kept_messages
from loopwright.gateway.dialects.dialect import Recall
from loopwright.gateway.dialects.responses import Responses
from loopwright.gateway.dialects.responses_items import input_items
from loopwright.gateway.dialects.responses_words import usage_body
from loopwright.gateway.reading import chosen, flag, objects
from loopwright.gateway.refusals import invalid
from loopwright.types import Message

COMPACTS = "compacts"
"""The wish by which a turn is known to be a summary."""


NOT_OF_A_SUMMARY = ("text", "tool_choice", "include")


def read_compaction(body: Mapping[str, Any], recall: Recall) -> Call:
    """The request for a summary. It offers no tools, so that the model writes text."""
    if flag(body, "stream"):
        raise invalid("stream", "a compaction comes in one piece", remedy="omit it")
    asked = Responses().read({**body, "text": None, "tool_choice": None, "tools": None}, recall)
    left_out = sorted({str(tool.get("type")) for _, tool in objects(body.get("tools"), "tools")})
    others = {**asked.wishes.others, **chosen(body, NOT_OF_A_SUMMARY), COMPACTS: True}
    others |= {"tools_left_out": left_out} if left_out else {}
    return replace(
        asked,
        messages=(*asked.messages, REQUEST),
        wishes=Wishes(asked.wishes.max_tokens, others=others),
        logprobs=False,
        alternatives=0,
    )


def compaction_body(answer: Answer, messages: Sequence[Message]) -> dict[str, Any]:
    """`messages` are the conversation that was compacted."""
    return {
        "id": f"resp_{answer.id}",
        "object": "response.compaction",
        "created_at": answer.created,
        "output": [*input_items(answer.id, kept_messages(messages), ()), compaction_item(answer.id)],
        "usage": usage_body(answer),
    }


def is_summary(wishes: Mapping[str, Any]) -> bool:
    """Whether a turn with these wishes is one."""
    return bool(wishes.get("others", {}).get(COMPACTS))
