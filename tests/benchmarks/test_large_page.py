"""The run that the page is measured on is one that the package reads, and is made once."""

from __future__ import annotations

from pathlib import Path

from benchmarks.large_run import KEPT_STEPS, LONG_TOKENS, LargeRun, make_large_run
from loopwright.buffer.archive import Archive
from loopwright.runs.one_rollout import read_rollout
from loopwright.runs.step_groups import Wanted, step_page, trained_steps
from loopwright.runs.text_search import search
from loopwright.types import RolloutKey

RUN = LargeRun(steps=8, rollouts=16)


def test_a_large_run_is_read_like_any_other(tmp_path: Path) -> None:
    path = make_large_run(tmp_path, RUN)
    changed = path.stat().st_mtime_ns
    assert make_large_run(tmp_path, RUN).stat().st_mtime_ns == changed
    database, archive = path / "rollouts.sqlite", Archive(path / "archive")
    steps, hits = trained_steps(database), search(database, RUN.only_text)
    assert steps is not None
    assert [one.step for one in steps.steps] == list(range(8, 0, -1))
    assert len(list((path / "archive").iterdir())) == 8 - KEPT_STEPS
    page = step_page(database, 2, Wanted())
    assert (page.total, len(page.groups[0].members)) == (2, 8)
    set_, *numbers = RUN.long_chain.split("/")
    for key in (RolloutKey(set_, *map(int, numbers)), RolloutKey("train", 15, 7)):
        found = read_rollout(database, archive, key)
        assert found is not None
        assert found.rollout.episode is not None
        assert found.trained is not None
        assert found.trained.pushes(0) is not None
        (chain,) = found.rollout.episode.chains
        assert len(chain) == (LONG_TOKENS if str(key) == RUN.long_chain else 300)
    assert hits is not None
    assert len(hits.hits) == 1
