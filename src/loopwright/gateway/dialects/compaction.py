"""The item that stands for a conversation that was compacted, and the message that the model reads in its place.

The item names the turn in which the model wrote the summary. So what is read is what the model has written, and no
client can write it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loopwright.gateway.dialects.dialect import Recall
from loopwright.gateway.dialects.responses_words import Item, item_id
from loopwright.gateway.reading import text
from loopwright.gateway.refusals import Code, invalid, refused
from loopwright.types import Message

COMPACTION = "cmp"
MARK = "loopwright-compaction-"
REQUEST: Message = {
    "role": "user",
    "content": "This conversation is too long and will be cut. Summarise it for whoever goes on with the task: what is "
    "asked, what was done and found out, what is decided, and what is left to do. Write only the summary.",
}
BEFORE = "The conversation before this was replaced by a summary of it:\n"


def compaction_item(answer: str) -> Item:
    return {"id": item_id(COMPACTION, answer, 0), "type": "compaction", "encrypted_content": MARK + answer}


def summary_message(item: Mapping[str, Any], where: str, recall: Recall) -> Message:
    """What the model reads in the place of an item."""
    written = text(item.get("encrypted_content"), f"{where}.encrypted_content")
    if not written.startswith(MARK):
        raise invalid(where, "it was not written by this server", remedy="send the conversation itself")
    said = recall(written.removeprefix(MARK))
    if said is None:
        raise refused(
            Code.UNKNOWN, f"{where}: this session has no such compaction", remedy="compact it again", param=where
        )
    return {"role": "user", "content": BEFORE + said["content"]}


def kept_messages(messages: Sequence[Message]) -> list[Message]:
    """The user's messages of a conversation, without earlier summaries."""
    return [one for one in messages if one["role"] == "user" and not one["content"].startswith(BEFORE)]
