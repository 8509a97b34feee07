"""`loopwright status`: what a run is doing, how far it is, and what went wrong. It only reads."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loopwright.cli.runs import RunPath, existing_run

if TYPE_CHECKING:
    from loopwright.runs.first_screen import FirstScreen

OLDEST = 5


def status(
    run: RunPath,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Print what a run is doing now, how far it is, and what went wrong.

    It only reads, and works beside a run, after it, and on runs of earlier versions.
    """
    from loopwright.runs.first_screen import first_screen

    screen = first_screen(existing_run(run))
    if as_json:
        typer.echo(json.dumps(screen.as_json(), indent=1))
        return
    from rich.console import Console
    from rich.text import Text

    from loopwright.cli.tokens import visible

    out = Console(highlight=False)
    for label, text, style in _lines(screen):
        out.print(Text.assemble((f"{label:<12}", "dim"), (visible(text), style)), soft_wrap=not out.is_terminal)


def _lines(screen: FirstScreen) -> Iterator[tuple[str, str, str]]:
    from loopwright.core.duration import duration
    from loopwright.track.console_text import sparkline

    told = screen.status.present
    yield "run", f"{screen.run}, {_state(screen)}", "bold"
    if (end := screen.status.ended) is not None and end.error is not None:
        yield "error", f"{end.error} ({_for(end.at)} ago)", "red"
    left = screen.seconds_left if told else None
    pace = f", {duration(screen.seconds_per_step)} per step" if screen.seconds_per_step else ""
    yield (
        "step",
        f"{screen.step} of {screen.steps if screen.steps is not None else '?'}{pace}"
        + (f", about {duration(left)} left" if left else ""),
        "",
    )
    for phase in told.get("now", ()):
        yield "now", f"{phase['what']}, step {phase['step']}, for {_for(phase['since'])}", ""
    for wait in told.get("waits", ()):
        yield "waits", f"{wait['who']} waits for {wait['for']}, for {_for(wait['since'])}", ""
    if screen.rewards:
        rewards = [value for _, value in screen.rewards]
        first = f" (first {rewards[0]:.3f})" if len(rewards) > 1 else ""
        yield "reward", f"{rewards[-1]:.3f}{first} {sparkline(rewards[-20:])}", ""
    for name, ((step, before), (latest, after)) in screen.evaluations.items():
        change = f" after step {latest}, {before:.3f} after step {step}" if latest != step else f" after step {step}"
        yield "evaluation", f"{name}: {after:.3f}{change}", ""
    for engine in told.get("engines", ()):
        yield "engine", _engine(engine, told), "" if engine["serves"] else "red"
    for rank in told.get("ranks", ()):
        yield "rank", _rank(rank), "" if rank["alive"] else "red"
    if sessions := told.get("sessions"):
        yield "sessions", _sessions(sessions), "red" if sessions["lost"] else ""
    for crew in told.get("crews", ()):
        yield "actors", _crew(crew), "" if crew["alive"] == crew["actors"] else "red"
    yield from _in_flight(told)
    for name, counts in screen.conservation.items():
        yield "groups", f"{name}: " + ", ".join(f"{count} {status}" for status, count in counts.items()), ""
    if screen.failures:
        yield "failures", ", ".join(f"{count} {cause}" for cause, count in screen.failures.items()), "red"
    if screen.engines_lost:
        yield "engines", f"lost {screen.engines_lost} times so far", "yellow"


def _state(screen: FirstScreen) -> str:
    from loopwright.core.duration import duration
    from loopwright.runs.run_status import RunState

    now = screen.status
    match now.state:
        case RunState.RUNNING:
            return f"running (process {now.pid})" + (", stopping" if now.told.get("stopping") else "")
        case RunState.SILENT:
            heard = "nothing" if now.age is None else f"nothing for {duration(now.age)}"
            return f"process {now.pid} uses it and has told {heard}"
        case _:
            return _ended(screen)


def _ended(screen: FirstScreen) -> str:
    from loopwright.runs.run_status import EndedHow

    end = screen.status.ended
    if end is not None and end.how is EndedHow.ERROR:
        return "ended with an error; the same train command goes on"
    if screen.is_finished:
        return "finished"
    return f"{'not running' if end is None else 'stopped'}; the same train command goes on"


def _engine(engine: dict[str, Any], told: dict[str, Any]) -> str:
    name = f"{engine['name']}: "
    if not engine["serves"]:
        away = engine["away_since"]
        since = f" for {_for(away)}" if away else ""
        return f"{name}serves nothing{since}" + (f"; its last words: {engine['last_words']}" if away else "")
    proof = engine["proof"]
    if told.get("proof") == "off":
        proven = "not proven (rollout.engine.proof is off)"
    else:
        proven = f"proven {_for(proof['at'])} ago" if proof else "not proven yet"
    return f"{name}weights {engine['version']}, {proven}, {engine['calls']} calls"


def _rank(rank: dict[str, Any]) -> str:
    pace, heard = rank["tokens_per_second"], rank["heard"]
    state = "alive" if rank["alive"] else "lost"
    spoke = f", heard {_for(heard)} ago" if heard else ""
    return f"{rank['rank']}: {state}{spoke}" + (f", {pace:,.0f} tokens/s in the last step" if pace else "")


def _sessions(sessions: dict[str, Any]) -> str:
    waiting = "" if sessions["waiting"] is None else f", {sessions['waiting']} wait for the model"
    heard = f", heard {_for(sessions['heard'])} ago" if sessions["heard"] else ""
    restarts = f", started again {sessions['restarts']} times" if sessions["restarts"] else ""
    lost = f"; the gateway cannot be used: {sessions['lost']}" if sessions["lost"] else ""
    return f"{sessions['open']} open{waiting}, {sessions['completed']} completed{heard}{restarts}{lost}"


def _crew(crew: dict[str, Any]) -> str:
    given_up = f"; given up: {crew['given_up']}" if crew["given_up"] else ""
    alive = f"{crew['role']}: {crew['alive']} of {crew['actors']} alive, {crew['calls']} calls"
    return f"{alive}, started again {crew['restarts']} times{given_up}"


def _in_flight(told: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    flying = told.get("in_flight")
    if not flying:
        return
    yield "in flight", f"{flying['agents']} rollouts, {flying['judged']} being judged", ""
    for one in flying["oldest"][:OLDEST]:
        doing = "is judged" if one["stage"] == "judge" else f"turn {one['turn']}, {one['tokens']} tokens"
        yield "", f"{one['rollout']}: {doing}, for {_for(one['since'])}", "dim"


def _for(since: float) -> str:
    from loopwright.core.duration import duration

    return duration(max(0.0, time.time() - since))
