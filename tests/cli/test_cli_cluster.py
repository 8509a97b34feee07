"""`loopwright cluster plan`, and what `check` says of a cluster that is too small."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from loopwright.cli import main
from loopwright.cluster import local_node

Run = Callable[..., tuple[int, str, str]]

CONFIG = """
model: {path: smollm2}
data: {kind: jsonl, path: tasks.jsonl}
agent: {kind: single_turn, judger: mine, num_actors: 2, num_cpus_per_actor: 0.25}
judgers: {mine: {kind: integer_answer, num_actors: 3}, unused: {kind: integer_answer, num_actors: 90}}
eval:
  data: {kind: jsonl, path: other.jsonl}
  agent: {kind: single_turn, judger: mine, num_actors: 2, num_cpus_per_actor: 0.25}
trainer: {run_dir: runs/x, steps: 10}
cluster: {num_cpus: 4}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_node, "machine_cores", lambda: 4)
    monkeypatch.setattr(local_node, "free_memory", lambda: 8 << 30)
    for name in ("tasks.jsonl", "other.jsonl"):
        (tmp_path / name).write_text('{"prompt": "1+1", "truth": 2}\n')
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command line; gives exit code, stdout and stderr."""

    def run_it(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return run_it


def test_it_prints_who_goes_where(file: Path, run: Run) -> None:
    """The evaluation has the same agent, so it has the same actors. A judger that nobody names has none."""
    code, out, err = run("cluster", "plan", file)
    assert code == 0
    assert out.splitlines() == [
        "role            actors  per actor  node",
        "judgers 'mine'  3       1 CPU      127.0.0.1",
        "loops 'train'   2       0.25 CPUs  127.0.0.1",
        "the run takes 3.5 CPUs of 4 CPUs, 8 GiB on 1 node",
    ]
    assert "cluster.num_cpus" not in err


def test_it_refuses_what_does_not_fit_with_the_arithmetic(file: Path, run: Run) -> None:
    code, out, err = run("cluster", "plan", file, "judgers.mine.num_cpus_per_actor=2")
    assert (code, out) == (2, "")
    assert "2 loops x 0.25 CPUs + 3 judgers x 2 CPUs = 6.5 CPUs; the cluster has 4, its largest node 4" in err
    assert "judgers 'mine': there is room for 2 of 3 actors; each takes 2 CPUs" in err
    assert "-> lower num_actors" in err


def test_it_warns_of_more_cpus_than_cores(file: Path, run: Run) -> None:
    code, _, err = run("cluster", "plan", file, "cluster.num_cpus=5")
    assert code == 0
    assert "warning: cluster.num_cpus is 5, and this machine has 4 cores" in err


def test_a_run_without_actors_has_no_plan(file: Path, run: Run) -> None:
    none = ["agent.num_actors=0", "eval.agent.num_actors=0", "judgers.mine.num_actors=0"]
    code, out, _ = run("cluster", "plan", file, *none)
    assert code == 0
    assert "nothing of this run is on actors" in out


def test_mistakes_in_the_config_come_first(file: Path, run: Run) -> None:
    code, _, err = run("cluster", "plan", file, "gateway.num_actors=2")
    assert code == 2
    assert "gateway.num_actors: is 2, must be 0 or 1" in err


def test_check_refuses_a_plan_that_does_not_fit_this_machine(file: Path, run: Run) -> None:
    assert run("check", file)[0] == 0
    code, _, err = run("check", file, "judgers.mine.memory_per_actor=4 GiB")
    assert code == 2
    assert "3 judgers x 4 GiB = 12 GiB; the cluster has 8, its largest node 8" in err


def test_a_plan_needs_neither_ray_nor_torch(file: Path) -> None:
    program = (
        "import sys; from loopwright.cli import main; code = main(sys.argv[1:]); "
        "assert code == 0, code; assert not {'ray', 'torch'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", program, "cluster", "plan", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
