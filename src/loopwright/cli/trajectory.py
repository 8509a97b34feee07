"""Prints one rollout: its task, messages, reward and tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from loopwright.cli.find_rollouts import Found
from loopwright.cli.tokens import chain_text, logprob_table, print_indented, visible
from loopwright.ports import Renderer
from loopwright.types import Failed, ProgramOutput, Rollout, Scored, StopReason

MARGIN = 2
ROLE_STYLES = {"assistant": "bold green", "user": "bold blue", "system": "bold magenta"}


def print_rollout(out: Console, found: Found, renderer: Renderer | None, *, logprobs: bool = False) -> None:
    """Print a rollout; with a renderer, its tokens instead of its messages."""
    rollout = found.rollout
    out.print(Text.assemble((str(rollout.key), "bold"), (f"  {found.where}", "dim")), soft_wrap=True)
    print_indented(out, _field("task", rollout.task.id), MARGIN)
    if rollout.task.truth is not None:
        print_indented(out, _field("truth", _plain(rollout.task.truth)), MARGIN)
    if rollout.episode is not None and rollout.episode.tools:
        print_indented(out, _field("tools", ", ".join(str(tool["name"]) for tool in rollout.episode.tools)), MARGIN)
    if renderer is None:
        _print_messages(out, rollout)
    else:
        _print_chains(out, rollout, renderer, logprobs)
    if rollout.episode is not None and rollout.episode.output is not None:
        _print_output(out, rollout.episode.output)
    print_indented(out, _verdict(rollout), MARGIN)
    if isinstance(rollout.reward, Scored) and rollout.reward.evidence and not _says_verifier(rollout):
        print_indented(out, _field("because", rollout.reward.evidence), MARGIN)
    out.print()


def _print_messages(out: Console, rollout: Rollout) -> None:
    """The transcript, or the prompt if there is no transcript."""
    messages = rollout.episode.messages if rollout.episode else rollout.task.messages
    for message in messages:
        role = str(message.get("role", ""))
        print_indented(out, Text(visible(role), style=ROLE_STYLES.get(role, "bold")), MARGIN)
        body = _plain(message.get("content") or "")
        extra = [
            f"{key}: {_plain(value)}" for key, value in message.items() if key not in ("role", "content") and value
        ]
        print_indented(out, Text(visible("\n".join([body, *extra] if body else extra))), 2 * MARGIN)


def _print_output(out: Console, output: ProgramOutput) -> None:
    """What the program and its verifier wrote."""
    ended = "was ended" if output.exit_code is None else f"exit code {output.exit_code}"
    print_indented(out, _field("program", f"{output.runner}, {ended}"), MARGIN)
    for text in (output.text, output.verifier):
        if text.strip():
            print_indented(out, Text(visible(text.rstrip()), style="dim"), 2 * MARGIN)


def _print_chains(out: Console, rollout: Rollout, renderer: Renderer, logprobs: bool) -> None:
    coloured = out.is_terminal and not out.no_color and out.color_system is not None
    chains = rollout.episode.chains if rollout.episode else ()
    for number, chain in enumerate(chains, start=1):
        named = f"tokens {number} of {len(chains)} ({chain.start})" if len(chains) > 1 else "tokens"
        constrained = sum(end - begin for begin, end in chain.constrained)
        remark = (f", {constrained} constrained" if constrained else "") + ("" if chain.trained else ", not trained")
        print_indented(out, _field(named, f"{len(chain)}, {chain.sampled} of them sampled{remark}"), MARGIN)
        print_indented(out, chain_text(chain, renderer, coloured=coloured), 2 * MARGIN)
        if logprobs:
            out.print(Padding(logprob_table(chain, renderer), (0, 0, 0, 2 * MARGIN)))


def _verdict(rollout: Rollout) -> Text:
    reward = rollout.reward
    if isinstance(reward, Scored):
        parts = "".join(f", {name} {value:g}" for name, value in reward.parts.items())
        line = _field("reward", f"{reward.value:g}{parts}", "bold")
    elif isinstance(reward, Failed):
        line = _field("failed", f"{reward.cause}, {reward.error}: {reward.detail}", "red")
    else:
        line = _field("reward", "not scored")
    return line.append("".join(f"  {remark}" for remark in _remarks(rollout)), style="dim")


def _says_verifier(rollout: Rollout) -> bool:
    """Whether the evidence is the verifier's output, which is printed already."""
    episode, reward = rollout.episode, rollout.reward
    verifier = episode.output.verifier if episode is not None and episode.output is not None else ""
    return (
        isinstance(reward, Scored)
        and bool(verifier)
        and reward.evidence is not None
        and verifier.startswith(reward.evidence.removesuffix("…"))
    )


def _remarks(rollout: Rollout) -> Iterator[str]:
    if rollout.episode is not None:
        yield f"{rollout.episode.sampled_tokens} tokens"
        if rollout.episode.stop is StopReason.BUDGET:
            yield "out of budget"
        yield f"{rollout.timing.agent_seconds:.1f} s"
    if rollout.oldest_version is not None:
        yield f"version {rollout.oldest_version}"


def _field(name: str, value: str, style: str = "") -> Text:
    return Text.assemble((f"{name} ", "dim"), (visible(value), style))


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
