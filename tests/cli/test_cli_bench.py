"""`loopwright bench` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import loopwright
from loopwright.cli import bench, main
from loopwright.errors import BenchError


@pytest.fixture
def run(capfd):
    """Run a command line; gives exit code, stdout and stderr."""

    def run_it(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(["bench", *arguments])
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return run_it


def test_without_a_name_all_are_listed(run):
    code, out, err = run()
    assert (code, err) == (0, "")
    names = [line.split()[0] for line in out.splitlines()]
    assert names == [
        "grpo",
        "grpo-dense",
        "grpo-long",
        "grpo-tiny",
        "busy",
        "buffer",
        "gateway",
        "remote",
        "decode",
        "decode-groups",
        "learn",
        "learn-checkpointed",
        "learn-lora",
        "learn-ranks",
        "makespan",
        "weights",
        "manager",
        "pool",
        "relay",
        "page",
        "cluster",
    ]


def test_an_unknown_name_is_an_error_that_lists_the_known_ones(run):
    code, out, err = run("grop")
    assert (code, out) == (1, "")
    assert "there is no benchmark 'grop'" in err
    assert "choose one of grpo, grpo-dense" in err


def test_a_peer_that_is_not_installed_is_an_error_with_its_make_target(run, tmp_path, monkeypatch):
    monkeypatch.setattr("loopwright.doctor.busy.busy_share", lambda: None)
    monkeypatch.setattr(bench, "find_checkout", lambda: _checkout_without_peers(tmp_path))
    code, _, err = run("grpo-tiny")
    assert code == 1
    assert "the peer 'trl' is not installed" in err
    assert "make .peers/trl/.ready, or leave it out with --ours-only" in err


@pytest.mark.parametrize(("share", "warned"), [(0.4, True), (0.04, False), (None, False)])
def test_a_busy_machine_is_a_warning(run, tmp_path, monkeypatch, share, warned):
    monkeypatch.setattr("loopwright.doctor.busy.busy_share", lambda: share)
    monkeypatch.setattr(bench, "find_checkout", lambda: _checkout_without_peers(tmp_path))
    _, _, err = run("grpo-tiny")
    assert ("the machine is busy (40% of its cores)" in err) == warned


@pytest.mark.parametrize("chosen", [None, "7"])
def test_workers_have_the_users_choice_of_how_threads_wait_and_not_ours(run, monkeypatch, chosen):
    given = []

    async def measure(benchmark, places, env, **others):
        given.append(env.get("GOMP_SPINCOUNT"))
        raise BenchError("enough", remedy="none")

    monkeypatch.setattr("benchmarks.harness.measure", measure)
    monkeypatch.setattr("loopwright.doctor.busy.busy_share", lambda: None)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", chosen or "")
    if chosen is None:
        monkeypatch.delenv("GOMP_SPINCOUNT")
    run("manager", "--ours-only")
    assert given == [chosen]


def test_an_installed_package_says_that_it_has_no_benchmarks(run, tmp_path, monkeypatch):
    installed = tmp_path / "lib" / "site-packages" / "loopwright" / "__init__.py"
    monkeypatch.setattr(loopwright, "__file__", str(installed))
    code, _, err = run()
    assert code == 1
    assert "clone the repository" in err


@pytest.mark.real
@pytest.mark.timeout(900)
def test_a_benchmark_runs_and_reports(run):
    """Ours and the machine's limit: real processes, no peer needed."""
    code, out, err = run("grpo-tiny", "--rounds", "2", "--ours-only", "--json")
    assert code == 0, err
    report = json.loads(out)
    ours = report["sides"]["loopwright"]
    assert len(ours["rounds"]) == 2
    for figures in ours["rounds"]:
        assert 0 < figures["rollout_seconds"] + figures["train_seconds"] <= figures["seconds"]
        assert 0 < figures["answer_tokens"] <= 64
        assert figures["trained_tokens"] > 0
        assert figures["limit_seconds"] > 0
    assert ours["versions"]["loopwright"] == loopwright.__version__
    assert set(report["limit"]) == {"prefill", "decode", "train"}
    assert err.count("round 2: loopwright") == 1


def _checkout_without_peers(folder: Path) -> Path:
    """The checkout's benchmarks and examples, and nothing else of it."""
    source = Path(bench.__file__).parents[3]
    for name in ("benchmarks", "examples"):
        (folder / name).symlink_to(source / name)
    return folder
