"""The example with tools, trained through `loopwright train` with a tiny model; its rollouts, and their drift."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from loopwright.cli import main
from loopwright.runs.stored_run import StoredRun

EXAMPLES = Path(__file__).parents[2] / "examples"

LETTERS = """
async def judge(task, episode):
    return sum(letter in "aeiou" for letter in episode.answer) / 4
"""


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """`train` takes SIGINT and SIGTERM for itself; pytest wants them back."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def run(*arguments: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    assert not left.value.code


def test_the_example_trains_and_its_tokens_do_not_drift(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # One worked example: four do not fit into the tiny model's context.
    source = (EXAMPLES / "tools_calculator.py").read_text()
    (tmp_path / "tools_calculator.py").write_text(f"{source}\nWORKED = WORKED[:4]\n")
    (tmp_path / "letters.py").write_text(LETTERS)
    config = yaml.safe_load((EXAMPLES / "tools_calculator.yaml").read_text())
    config["model"] = {"path": str(tiny_model), "threads": 1}
    config["agent"] |= {"judger": "letters", "max_turns": 2}
    config["judgers"] = {"letters": {"kind": "native", "path": "letters.py:judge"}}
    config["rollout"] = {"samples_per_task": 2, "max_new_tokens": 8}
    config["trainer"] |= {"run_dir": str(tmp_path / "run"), "steps": 2, "groups_per_step": 2}
    config["track"] = {"console": False}
    del config["eval"], config["agent"]["max_tokens"]
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(config))
    run("train", str(file))

    stored = StoredRun(tmp_path / "run" / "rollouts.sqlite")
    assert stored.steps() == (1, 2)
    for rollout in stored.rollouts(1):
        assert rollout.episode is not None
        roles = [message["role"] for message in rollout.episode.messages]
        assert roles[:6] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
        (chain,) = rollout.episode.chains
        assert chain.sampled > 0
        assert rollout.episode.tools, "they are needed to render the conversation again"

    capsys.readouterr()
    run("drift", str(tmp_path / "run"), "--json")
    facts = json.loads(capsys.readouterr().out)
    assert facts["conversations"] == facts["chains"] == 8
    assert facts["tokens"] > 0
    # A random model writes odd spellings: what a re-tokenisation makes of them is not what was sampled.
    assert facts["wrong"] > 0
