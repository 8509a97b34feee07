"""Libraries that ask for answers in a form, with a model that strays without one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from clients import PYTHON, need, played

pytestmark = pytest.mark.real

CLIENTS = ("openai", "instructor", "instructor-json", "pydantic-ai", "dspy")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of each client. They share a gateway, because starting torch takes longer than all of them."""
    home, python = tmp_path_factory.mktemp("home"), PYTHON / "python"
    need(python)
    scene = {
        "clients": CLIENTS,
        "command": [str(python), str(Path(__file__).parent / "form_clients.py")],
        "home": str(home),
        "files": {},
        "seed": 1,
        "environment": {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "BASE_URL": "$URL",
            "API_KEY": "$KEY",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "DSPY_CACHEDIR": str(home / "cache"),
        },
    }
    return played("form_scene.py", scene)


@pytest.mark.parametrize("client", CLIENTS)
def test_it_gets_its_answer_in_the_form_that_it_asked_for(client: str, outcomes: dict[str, Any]) -> None:
    outcome = outcomes[client]
    assert outcome["code"] == 0, outcome["err"]
    said = json.loads(outcome["out"].splitlines()[-1])
    assert set(said) == {"right", "colour", "marks"}
    assert (outcome["forms"], outcome["chains"]) == ([True], 1)
