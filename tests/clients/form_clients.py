"""Libraries that ask for answers in a form, each with one question. It runs with the clients' own Python; its argument
is the library. It prints what the library made of the answer, as JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel

URL, KEY = os.environ["BASE_URL"], os.environ["API_KEY"]
QUESTION = "Which is it?"
ROOM = 2000


class Verdict(BaseModel):
    """What was found."""

    right: bool
    colour: Literal["red", "green"]
    marks: int


def openai_parse() -> Any:
    from openai import OpenAI

    said = OpenAI(base_url=URL, api_key=KEY).chat.completions.parse(
        model="any", messages=[{"role": "user", "content": QUESTION}], response_format=Verdict, max_tokens=ROOM
    )
    return said.choices[0].message.parsed


def instructor_tools() -> Any:
    import instructor
    from openai import OpenAI

    client = instructor.from_openai(OpenAI(base_url=URL, api_key=KEY))
    return client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": QUESTION}],
        response_model=Verdict,
        max_tokens=ROOM,
        max_retries=0,
    )


def instructor_json() -> Any:
    import instructor
    from openai import OpenAI

    client = instructor.from_openai(OpenAI(base_url=URL, api_key=KEY), mode=instructor.Mode.JSON_SCHEMA)
    return client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": QUESTION}],
        response_model=Verdict,
        max_tokens=ROOM,
        max_retries=0,
    )


def pydantic_ai() -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("any", provider=OpenAIProvider(base_url=URL, api_key=KEY))
    agent = Agent(model, output_type=Verdict, retries=0, model_settings={"max_tokens": ROOM})
    return agent.run_sync(QUESTION).output


def dspy() -> Any:
    import dspy

    class Judge(dspy.Signature):  # type: ignore[misc]
        """Say what was found."""

        question: str = dspy.InputField()
        right: bool = dspy.OutputField()
        colour: Literal["red", "green"] = dspy.OutputField()
        marks: int = dspy.OutputField()

    lm = dspy.LM(
        "openai/gpt-4o", api_base=URL, api_key=KEY, max_tokens=ROOM, cache=False, temperature=1.0, num_retries=0
    )
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        said = dspy.Predict(Judge)(question=QUESTION)
    return Verdict(right=said.right, colour=said.colour, marks=said.marks)


CLIENTS: dict[str, Callable[[], Any]] = {
    "openai": openai_parse,
    "instructor": instructor_tools,
    "instructor-json": instructor_json,
    "pydantic-ai": pydantic_ai,
    "dspy": dspy,
}

if __name__ == "__main__":
    found = CLIENTS[sys.argv[1]]()
    print(json.dumps(Verdict.model_validate(found.model_dump()).model_dump()))
