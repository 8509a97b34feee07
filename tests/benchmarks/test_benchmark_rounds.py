"""From what a worker answers to the figures of a round, and what both sides are given to work on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.buffer import RowsPlan
from benchmarks.catalogue import BENCHMARKS, find
from benchmarks.flops import Layers
from benchmarks.gateway import BarePlan
from benchmarks.grpo import Grpo
from benchmarks.harness import Measured, Side
from benchmarks.learn import LENGTHS
from benchmarks.makespan import LEARNER_SECONDS, STALENESS
from benchmarks.pool import PoolRequests, StraightPlan
from benchmarks.products import Products
from benchmarks.remote import BareProgramsPlan
from benchmarks.report import as_json, table
from benchmarks.rewards import REWARDS, dense, exact
from benchmarks.tasks import with_notes
from benchmarks.weights import TRANSPORTS, CopyPlan
from benchmarks.work import Pace, Phase, Rows
from benchmarks.workers import judgers
from loopwright.errors import BenchError

PACE = Pace(dict.fromkeys(Phase, 0.01), dict.fromkeys(Phase, 0.0))
STEP = {
    "seconds": 4.0,
    "cpu_seconds": 8.0,
    "rollout_seconds": 1.5,
    "train_seconds": 2.5,
    "peak_memory": 2_000_000,
    "trained_tokens": 8,
    "groups": [
        {"prompt_tokens": 20, "sampled": [5, 5], "rewards": [0.0, 1.0]},
        {"prompt_tokens": 20, "sampled": [4, 2], "rewards": [1.0, 1.0]},
    ],
}


BUFFER = {
    "seconds": 9.0,
    "cpu_seconds": 3.0,
    "peak_memory": 1_000_000,
    "samples": 400,
    "put_seconds": {"1": 4.0, "64": 0.5},
    "get_seconds": {"1": 2.0, "64": 1.0},
}
RATES = {"puts_1": 200.0, "gets_1": 400.0, "puts_64": 1600.0, "gets_64": 4000.0}

CALLS = {
    "seconds": 9.0,
    "cpu_seconds": 3.0,
    "peak_memory": 0,
    "direct_ms": {"p50": 0.25, "p99": 1.0},
    "alone_ms": {"p50": 1.25, "p99": 4.0},
    "direct_rate": 6000.0,
    "rates": [1500.0, 1200.0],
    "cpu_ms": 0.6,
    "proxy_memory": 3_000_000,
    "beside": {"alone_ms": {"p50": 1.0, "p99": 2.0}, "rate": 1600.0, "cpu_ms": 0.5},
}
BARE = {"rate_16": 3000.0}

CASE = {"makespan": 1.0, "ideal": 1.0, "slowest_groups": 1.0, "slowest_tokens": 1.0}
CASES = [{**CASE, "staleness": steps, "learner": seconds} for steps in STALENESS for seconds in LEARNER_SECONDS]
BUSY = {"quiet_seconds": 4.0, "busy_seconds": 7.0, "quiet_cpu_seconds": 8.0, "peak_memory": 1_000_000}
PROGRAMS = {
    "seconds": 20.0,
    "cpu_seconds": 14.0,
    "driver_cpu_seconds": 2.0,
    "peak_memory": 100_000_000,
    "processes": 16,
}
BARE_PROGRAMS = {"driver_cpu_ms": 3.0, "program_cpu_ms": 60.0}
PARTS = {"seconds": 2.0, "write": 0.5, "load": 0.5, "proof": 1.0}
UPDATES = {"seconds": 9.0, "cpu_seconds": 3.0, "peak_memory": 2_000_000, "updates": dict.fromkeys(TRANSPORTS, PARTS)}
COPY = {"warm": 0.25, "fresh": 0.5}
ON_ACTORS = {
    **STEP,
    "local_call": [0.001] * 100,
    "actor_call": [0.003] * 100,
    "bare_call": [0.002] * 100,
    "rate": {"1": 800.0, "2": 1400.0, "4": 1300.0, "16": 1200.0},
    "driver_us": {"1": 600.0, "2": 600.0, "4": 600.0, "16": 660.0},
    "door_rate": 1700.0,
    "door_us": 580.0,
}
RELAYED = {**STEP, "direct": [0.002] * 100, "relay": [0.0035] * 100, "direct_rate": 900.0, "relay_rate": 500.0}
LEARNED: dict[str, Any] = {
    **STEP,
    "steps": [{"tokens": n, "bytes": 500_000 * n, "seconds": n / 1000} for n in LENGTHS],
    "resident": 2_000_000_000,
}
LEARNED_BY_RANKS: dict[str, Any] = {
    **STEP,
    "steps": [
        {"tokens": n, "bytes": [300_000 * n, 400_000 * n], "seconds": n / 1000, "communication_share": 0.25}
        for n in LENGTHS
    ],
    "resident": [1_000_000_000, 1_100_000_000],
}

PAGE = {
    "usable": dict.fromkeys(("first_view", "step", "trajectory", "tokens", "search", "search_old", "health"), 0.5),
    "largest_answer": 127_000,
    "server_memory": 200_000_000,
    "stream_share": 0.003,
    "run_bytes": 1_000_000_000,
}
ANSWERS = {
    "page": (PAGE, None),
    "learn": (LEARNED, None),
    "learn-checkpointed": (LEARNED, None),
    "learn-lora": (LEARNED, None),
    "learn-ranks": (LEARNED_BY_RANKS, None),
    "weights": (UPDATES, COPY),
    "busy": (BUSY, None),
    "buffer": (BUFFER, RATES),
    "makespan": ({**STEP, "in_turn_seconds": 1.0, "cases": CASES}, None),
    "gateway": (CALLS, BARE),
    "remote": (PROGRAMS, BARE_PROGRAMS),
    "manager": ({**STEP, "cases": [1.0, 1.0]}, None),
    "cluster": (ON_ACTORS, None),
    "relay": (RELAYED, None),
    "pool": ({**STEP, "cases": [1.0, 1.0, 1.0]}, {"us_1": 10.0, "us_8": 10.0, "us_64": 10.0}),
}


def words(text: str) -> int:
    return len(text.split())


def test_a_grpo_round():
    figures = find("grpo").round(STEP, PACE)
    # 40 prompt and 12 fed tokens sampled; the first group's 20 and 8 trained.
    assert figures["limit_seconds"] == pytest.approx(0.8)
    assert figures["limit_share"] == pytest.approx(0.2)
    assert figures["samples_per_second"] == 1.0
    assert figures["answer_tokens"] == 4.0
    assert figures["ms_per_sampled_token"] == 250.0
    assert figures["groups_with_signal"] == 1
    assert figures["reward"] == 0.75
    assert figures["peak_memory_mb"] == 2.0


def test_a_round_of_calls_to_actors():
    figures = find("cluster").round(ON_ACTORS, None)
    assert figures["added_p50_ms"] == pytest.approx(2.0)
    assert figures["bare_p99_ms"] == pytest.approx(2.0)
    assert figures["growth"] == pytest.approx(1.1)


def test_a_round_of_calls_through_a_relay():
    figures = find("relay").round(RELAYED, None)
    assert figures["added_p50_ms"] == pytest.approx(1.5)
    assert figures["direct_p50_ms"] == pytest.approx(2.0)


def test_a_decode_round():
    answer = {"seconds": 5.0, "cpu_seconds": 10.0, "first_token_seconds": 1.0, "peak_memory": 0}
    figures = find("decode").round(answer, Pace(dict.fromkeys(Phase, 0.001), dict.fromkeys(Phase, 0.0)))
    assert figures["tokens_per_second"] == pytest.approx(64 * 32 / 5)
    assert figures["decode_tokens_per_second"] == pytest.approx(64 * 31 / 4)
    assert figures["limit_decode_tokens_per_second"] == pytest.approx(1000)
    assert figures["limit_share"] == pytest.approx((64 * 39 + 64 * 31) / 1000 / 5)
    grouped = find("decode-groups").round(answer, Pace(dict.fromkeys(Phase, 0.001), dict.fromkeys(Phase, 0.0)))
    assert grouped["tokens_per_second"] == figures["tokens_per_second"]
    assert grouped["limit_share"] == pytest.approx((8 * 39 + 64 * 31) / 1000 / 5)


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.name)
def test_every_figure_that_is_shown_is_in_a_round(benchmark):
    answer, pace = ANSWERS.get(benchmark.name, ({**STEP, "first_token_seconds": 1.0}, PACE))
    assert {figure.key for figure in benchmark.figures} <= set(benchmark.round(answer, pace))


def test_a_learn_round():
    figures = find("learn").round(LEARNED, None)
    assert figures["growth"] == 1.0, "memory grows with the row"
    assert (figures["mb_8192"], figures["seconds_2048"], figures["resident_mb"]) == (4096.0, 2.048, 2000.0)


def test_a_row_that_needs_too_much_memory_has_no_figures_and_the_table_says_so():
    benchmark = find("learn")
    mine = benchmark.round(LEARNED, None)
    theirs = benchmark.round({**LEARNED, "steps": LEARNED["steps"][:1]}, None)
    nothing = benchmark.round({**LEARNED, "steps": []}, None)
    assert (mine["longest"], theirs["longest"], nothing["longest"]) == (8192, 1024, 0)
    measured = Measured(benchmark, (Side("loopwright", {}, (mine,)), Side("trl", {}, (theirs,))), None)
    shown = {line.split("  ")[0]: line for line in table(measured)}
    assert "out of memory" in shown["seconds, row of 2,048 tokens"]
    assert "1.00 (1.00 - 1.00) x" in shown["seconds, row of 1,024 tokens"]
    report = as_json(measured, 0.1)
    assert report["sides"]["trl"]["figures"]["mb_2048"] == "out of memory"
    assert "seconds_2048" not in report["ratios"]


def test_a_learn_round_of_two_ranks_tells_the_memory_of_each():
    figures = find("learn-ranks").round(LEARNED_BY_RANKS, None)
    assert (figures["mb_1024"], figures["other_mb_1024"]) == (409.6, 307.2)
    assert (figures["resident_mb"], figures["communication_share"], figures["growth"]) == (1100.0, 0.25, 1.0)
    alone = [{**step, "bytes": step["bytes"][:1]} for step in LEARNED_BY_RANKS["steps"]]
    assert "other_mb_1024" not in find("learn-ranks").round({**LEARNED_BY_RANKS, "steps": alone}, None)


def test_a_buffer_round():
    figures = find("buffer").round(BUFFER, RATES)
    assert (figures["puts_1"], figures["gets_1"], figures["puts_64"], figures["gets_64"]) == (
        100.0,
        200.0,
        800.0,
        400.0,
    )
    assert figures["limit_share_puts_1"] == 0.5
    assert figures["limit_share_gets_64"] == 0.1


def test_a_buffers_limit_is_the_median_of_its_rounds():
    seconds = (1.0, 2.0, 4.0)
    limit = RowsPlan({}).measured(
        [{"samples": 10, "put_seconds": {"1": one}, "get_seconds": {"1": 1.0}} for one in seconds]
    )
    assert limit.pace == {"puts_1": 5.0, "gets_1": 10.0}
    assert limit.as_json() == limit.pace
    assert "puts_1 5" in limit.line


def test_a_gateway_round():
    figures = find("gateway").round(CALLS, BARE)
    assert (figures["p50_added_ms"], figures["p99_added_ms"]) == (1.0, 3.0)
    assert (figures["rate_16"], figures["rate_256"]) == (1500.0, 1200.0)
    assert figures["limit_share"] == 0.5
    assert figures["peak_memory_mb"] == 3.0
    assert figures["store_p50_ms"] == 0.25
    assert figures["store_cpu_ms"] == pytest.approx(0.1)
    assert "store_cpu_ms" not in find("gateway").round({**CALLS, "beside": None}, BARE), "a peer has no such store"
    limit = BarePlan({}).measured([{**CALLS, "rates": [rate, 1.0]} for rate in (2000.0, 3000.0, 9000.0)])
    assert limit.pace["rate_16"] == 3000.0
    assert "3,000 and 1 requests per second" in limit.line


def test_a_pool_round():
    pool = PoolRequests("pool", "for a test", requests=1000)
    answer = {"seconds": 9.0, "cpu_seconds": 9.0, "peak_memory": 2_000_000, "cases": [0.020, 0.021, 0.024]}
    figures = pool.round(answer, {"us_1": 10.0, "us_8": 10.0, "us_64": 12.0})
    assert [figures[key] for key in ("us_1", "us_64", "added_us_1", "added_us_64")] == pytest.approx([20, 24, 10, 12])
    assert figures["growth"] == pytest.approx(1.2)
    assert figures["added_growth"] == pytest.approx(1.2)
    limit = StraightPlan({"requests": 1000}).measured([{"cases": [one, one, one]} for one in (0.010, 0.011, 0.030)])
    assert limit.pace["us_64"] == pytest.approx(11)
    assert "11.0 (engines: 64)" in limit.line


def test_a_weights_round():
    figures = find("weights").round(UPDATES, COPY)
    assert (figures["file_seconds"], figures["broadcast_copies"]) == (2.0, 4.0)
    limit = CopyPlan({"bytes": 1000}).measured([{"warm": 0.125, "fresh": 0.5}, {"warm": 0.375, "fresh": 0.5}])
    assert limit.as_json() == {**COPY, "bytes": 1000}
    assert "0.500 s into fresh pages" in limit.line


def test_a_remote_round():
    figures = find("remote").round(PROGRAMS, BARE_PROGRAMS)
    assert (figures["driver_cpu_ms"], figures["program_cpu_ms"]) == (10.0, 60.0)
    assert figures["limit_share"] == pytest.approx(0.9)
    assert (figures["peak_memory_mb"], figures["processes"]) == (100.0, 16)
    spec = {"programs": 100}
    limit = BareProgramsPlan(spec).measured([{**PROGRAMS, "seconds": seconds} for seconds in (9.0, 11.0, 40.0)])
    assert (limit.pace["seconds"], limit.pace["driver_cpu_ms"]) == (11.0, 20.0)
    assert "11.0 s, CPU 20.00 ms" in limit.line


def test_the_limit_is_measured_at_the_rows_that_occur():
    assert Grpo("x", "y").rows(prompt_tokens=48) == {
        Phase.PREFILL: Rows(384, 8),
        Phase.DECODE: Rows(64, 64),
        Phase.TRAIN: Rows(384 + 960, 8 + 960),
    }
    assert Grpo("x", "y", groups=64).rows(prompt_tokens=48)[Phase.TRAIN].body == 4096


def test_the_report_is_plain_json_and_the_table_shows_both_sides():
    benchmark = find("grpo")
    mine, theirs = (benchmark.round({**STEP, "seconds": seconds}, PACE) for seconds in (4.0, 20.0))
    sides = (Side("loopwright", {"loopwright": "1.0"}, (mine,)), Side("trl", {"trl": "1.16.0"}, (theirs,)))
    layers = Layers(((1000, 1000),) * 500, (1000, 1000))
    limit = Products(layers, {Phase.DECODE: Rows(64, 0)}, {"decode": {"body": 0.64, "head": 0.0}})
    measured = Measured(benchmark, sides, limit)
    report = json.loads(json.dumps(as_json(measured, 0.1)))
    assert report["ratios"]["seconds"]["median"] == 5.0
    assert report["sides"]["trl"]["figures"]["seconds"] == {"median": 20.0, "lowest": 20.0, "highest": 20.0}
    assert report["limit"]["decode"]["gflops_per_second"] == pytest.approx(100)
    heading, *_ = [line for line in table(measured) if "trl 1.16.0" in line]
    assert "loopwright 1.0" in heading
    assert any("5.00 (5.00 - 5.00) x" in line for line in table(measured))


def test_a_report_without_a_peer_has_no_ratios():
    benchmark = find("grpo")
    ours = Side("loopwright", {}, (benchmark.round(STEP, PACE),))
    measured = Measured(benchmark, (ours,), Products(Layers((), (1, 1)), {}, {}))
    assert as_json(measured, 0.0)["ratios"] == {}
    assert any(line.startswith("seconds per step") for line in table(measured))
    assert "better" not in "".join(table(measured))


@pytest.mark.parametrize("tokens", [40, 41, 1195])
def test_a_prompt_has_exactly_as_many_tokens_as_asked_for(tokens):
    prompt = with_notes("What is 1+1?", tokens, words, start=5)
    assert words(prompt) == tokens
    assert prompt.endswith("What is 1+1?")
    assert prompt == with_notes("What is 1+1?", tokens, words, start=5)


def test_a_prompt_that_cannot_be_so_short_is_an_error():
    with pytest.raises(BenchError, match="no prompt of exactly 2 tokens"):
        with_notes("What is 1+1?", 2, words)


@pytest.mark.parametrize(
    ("answer", "reward"), [("The sum is 12.", 1.0), ("5+7=13", 0.0), ("", 0.0), ("-12", 0.0), ("9" * 6000, 0.0)]
)
def test_the_exact_reward(answer, reward):
    assert exact(answer, 12) == reward


def test_the_dense_reward_tells_near_from_far_and_words_apart():
    assert dense("12", 12) > dense("13", 12) > dense("40", 12) > 0
    assert dense("no idea", 12) != dense("none", 12)


def test_every_reward_is_a_judger_too():
    assert all(callable(getattr(judgers, name)) for name in REWARDS)


def test_a_step_beside_a_busy_process_is_told_in_terms_of_the_quiet_one() -> None:
    assert find("busy").round(BUSY, None)["times_quiet"] == pytest.approx(1.75)
