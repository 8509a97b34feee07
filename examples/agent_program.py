"""An agent that is a program: one file with the openai SDK, and nothing of Loopwright's.

It reads a question from its standard input, asks the model, checks the form of the answer, asks once more if that is no
number, and writes the answer to a file. Where the model is, it learns from OPENAI_BASE_URL and OPENAI_API_KEY.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from openai import DefaultHttpxClient, OpenAI

MOST_TURNS = 2


def main() -> None:
    question = sys.stdin.read().strip()
    # The model is on this machine: reading the world's certificates at each start would only take time.
    client = OpenAI(http_client=DefaultHttpxClient(verify=False))
    messages: list[Any] = [{"role": "user", "content": question}]
    answer = ""
    for _ in range(MOST_TURNS):
        reply = client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages)
        answer = (reply.choices[0].message.content or "").strip()
        if answer.removesuffix(".").isdecimal():
            break
        messages += [
            {"role": "assistant", "content": reply.choices[0].message.content or ""},
            {"role": "user", "content": "Answer with the number only."},
        ]
    Path("answer.txt").write_text(answer, "utf-8")


if __name__ == "__main__":
    main()
