"""The program of the remote benchmark: it asks the model so many times, each time with the whole conversation.

It imports no SDK, so that what is measured is the way to the model. Only the standard library, and nothing of ours.
"""

import json
import os
import sys
import urllib.request

TIMEOUT_SECONDS = 120


def ask(messages: list[dict[str, str]]) -> dict[str, str]:
    body = json.dumps({"model": "policy", "messages": messages}).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as reply:
        message: dict[str, str] = json.load(reply)["choices"][0]["message"]
    return {"role": message["role"], "content": message["content"]}


def main(turns: int, question: str) -> None:
    messages = []
    for turn in range(turns):
        messages.append({"role": "user", "content": question if turn == 0 else f"Are you sure? ({turn})"})
        messages.append(ask(messages))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
