"""terminus-2 of the real Harbor collects its tokens (`collect_rollout_details`): they are those that are trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harbor_scene import CONTEXT, Script, needs_harbor, needs_tmux, scene, trained

from loopwright.core.chains import turns_of
from loopwright.testing.tiny import tiny_llama

pytestmark = [*needs_harbor, needs_tmux, pytest.mark.timeout(900)]

WriteConfig = Callable[..., Path]

DETAILED = """
import json
from pathlib import Path

from harbor.agents.terminus_2 import Terminus2


class Detailed(Terminus2):
    # terminus-2, which keeps what it was told of its tokens beside this file.

    async def run(self, instruction, environment, context):
        await super().run(instruction, environment, context)
        told = Path(__file__).with_name(f"{self.logs_dir.parent.name}.details")
        told.write_text(json.dumps(context.rollout_details))
"""


async def test_terminus_collects_the_tokens_that_are_trained(write_config: WriteConfig, tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "tiny", max_position_embeddings=CONTEXT)
    info = {"max_input_tokens": CONTEXT, "max_output_tokens": 1024}
    details: dict[str, Any] = {
        "collect_rollout_details": True,
        "record_terminal_session": False,
        "model_info": info,
        "enable_summarize": False,
    }
    more: dict[str, Any] = {"runner": {"agent_args": details}, "trainer__groups_per_step": 1}
    async with scene(write_config, model, "detailed:Detailed", Script(), **more) as file:
        (file.parent / "detailed.py").write_text(DETAILED)
        rollouts = await trained(file)
        told = [json.loads(kept.read_text()) for kept in file.parent.glob("*.details")]
    collected = []
    for (detail,) in told:
        # terminus-2 asks once more whether the task is complete.
        assert len(detail["prompt_token_ids"]) == 3
        streams = zip(detail["prompt_token_ids"], detail["completion_token_ids"], detail["logprobs"], strict=True)
        collected.append([(tuple(prompt), tuple(ids), tuple(odds)) for prompt, ids, odds in streams])
    recorded = []
    for one in rollouts:
        assert one.episode is not None
        (chain,) = one.episode.chains
        recorded.append([(turn.prompt_ids, turn.ids, turn.logprobs) for turn in turns_of(chain)])
    assert len(recorded) == 2
    assert sorted(collected) == sorted(recorded)
