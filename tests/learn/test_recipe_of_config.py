"""What the recipe takes from other sections of the config than `learner`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranked import config_of

from loopwright.build.parts import make_outline
from loopwright.build.recipe import load_ingredients, make_driver_recipe
from loopwright.config.loading import load_from_python


@pytest.mark.parametrize(
    ("trainer", "engine", "lends"),
    [
        ("colocate", {}, False),
        ("colocate", {"num_engines": 1}, True),
        ("colocate", {"kind": "vllm", "urls": ["http://127.0.0.1:1"]}, True),
        ("disaggregated", {"num_engines": 1}, False),
    ],
)
def test_the_device_is_lent_to_engines_that_take_turns_with_the_learner(
    llama_folder: Path, tmp_path: Path, trainer: str, engine: dict[str, Any], lends: bool
) -> None:
    values = config_of(llama_folder, tmp_path, ranks=1).config.model_dump(exclude_unset=True)
    values["trainer"]["kind"] = trainer
    values["produce"] = {"kind": "async" if trainer == "disaggregated" else "sync"}
    values["rollout"] = {"engine": engine}
    loaded = load_from_python(values, base=tmp_path)
    recipe = make_driver_recipe(loaded, load_ingredients(loaded), make_outline(loaded, tmp_path))
    assert recipe.lends_device is lends
