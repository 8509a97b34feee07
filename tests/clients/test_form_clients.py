"""Libraries that ask for answers in a form, with a model that strays without one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from clients import PYTHON, need, played

pytestmark = pytest.mark.real


@pytest.mark.parametrize("client", ["openai", "instructor", "instructor-json", "pydantic-ai", "dspy"])
def test_it_gets_its_answer_in_the_form_that_it_asked_for(client: str, tmp_path: Path) -> None:
    python = PYTHON / "python"
    need(python)
    scene = {
        "command": [str(python), str(Path(__file__).parent / "form_clients.py"), client],
        "home": str(tmp_path),
        "files": {},
        "seed": 1,
        "environment": {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "LANG": "C.UTF-8",
            "BASE_URL": "$URL",
            "API_KEY": "$KEY",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "DSPY_CACHEDIR": str(tmp_path / "cache"),
        },
    }
    outcome = played("form_scene.py", scene)
    assert outcome["code"] == 0, outcome["err"]
    said = json.loads(outcome["out"].splitlines()[-1])
    assert set(said) == {"right", "colour", "marks"}
    assert (outcome["forms"], outcome["chains"]) == ([True], 1)
