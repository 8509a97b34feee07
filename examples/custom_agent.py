"""An agent loop is a class with one method: ask, and ask again if the answer is not a bare number.

agent:
  kind: python
  path: custom_agent.py:AskTwice
  args: {reminder: Answer with the number only.}
  judger: integer_answer
"""

from __future__ import annotations

from collections.abc import Sequence

from loopwright import Message, Policy, Task


class AskTwice:
    """Both answers are trained: the policy records every token, and the second turn continues the first."""

    def __init__(self, reminder: str = "Answer with the number only.") -> None:
        self.reminder = reminder

    async def run(self, task: Task, policy: Policy) -> Sequence[Message]:
        messages = list(task.messages)
        reply = await policy.reply(messages)
        messages.append(reply.message)
        if not reply.text.strip().lstrip("-").isdigit():
            messages.append({"role": "user", "content": self.reminder})
            reply = await policy.reply(messages)
            messages.append(reply.message)
        return messages
