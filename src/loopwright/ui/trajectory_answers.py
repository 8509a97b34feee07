"""What the page says of one rollout: its conversation, its score, and how its chains hang together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from loopwright.core.chain_tree import chain_tree
from loopwright.errors import RefusedError
from loopwright.runs.one_rollout import RolloutPage, read_rollout
from loopwright.runs.rejudged_scores import RejudgedScores
from loopwright.runs.trained_tokens import TrainedTokens
from loopwright.types import Episode, Failed, Reward, Rollout, Scored, TokenChain
from loopwright.ui.answers import cut, encoded, fitting, numbers
from loopwright.ui.asked import Asked
from loopwright.ui.run_view import RunView
from loopwright.ui.step_answers import member_answer

MOST_MESSAGES = 400
MESSAGES_BYTES, OTHERS_BYTES = 800_000, 100_000
"""How much of an answer the parts of a rollout may take that have no bounds of their own."""
TEXT_PIECE = 400_000
TEXT_BYTES = 1_500_000
COPIED_TOKENS = 20_000


def find(view: RunView, asked: Asked) -> RolloutPage:
    """The rollout that was asked for. Raises if there is none."""
    key = asked.key()
    found = read_rollout(view.database, view.archive(), key, asked.maybe_number("round"))
    if found is None:
        raise RefusedError(
            f"there is no rollout {str(key)[:200]}", remedy="it may have been undone by a resume", status=404
        )
    return found


def show_rollout(view: RunView, asked: Asked) -> dict[str, Any]:
    page = find(view, asked)
    rollout = page.rollout
    episode = rollout.episode
    messages = list(episode.messages if episode else rollout.task.messages)
    return {
        "key": str(rollout.key),
        "task_set": cut(rollout.key.task_set),
        "draw": rollout.key.draw,
        "member": rollout.key.member,
        "attempt": rollout.key.attempt,
        "round": page.round,
        "status": page.status,
        "step": page.step,
        "stop": episode.stop if episode else None,
        "task": {
            "id": cut(rollout.task.id, 300),
            "truth": fitting(rollout.task.truth, OTHERS_BYTES),
            "metadata": fitting(rollout.task.metadata, OTHERS_BYTES),
        },
        "messages": fitting(messages[:MOST_MESSAGES], MESSAGES_BYTES),
        "messages_left_out": max(0, len(messages) - MOST_MESSAGES),
        "tools": fitting(episode.tools if episode else (), OTHERS_BYTES),
        "output": _output(episode),
        "reward": _reward(rollout.reward),
        "timing": {
            "started": rollout.timing.started,
            "agent_seconds": rollout.timing.agent_seconds,
            "judge_seconds": rollout.timing.judge_seconds,
            "held_seconds": rollout.timing.held_seconds,
            "judged_at": rollout.timing.judged_at,
        },
        "worker": cut(rollout.worker),
        "engines": list(rollout.engines),
        "why": cut(page.why, 400),
        "trained": _trained(page.trained),
        "drift": None
        if episode is None or episode.drift is None
        else {"tokens": episode.drift.tokens, "wrong": episode.drift.wrong},
        "chains": list(_chains(episode.chains if episode else ())),
        "members": [member_answer(one, page.trained.step_terms if page.trained else None) for one in page.members],
        "attempts": page.attempts,
        "rejudged": list(_rejudged(view, page)),
    }


def show_text(view: RunView, asked: Asked) -> dict[str, Any]:
    """A piece of one long text. `path` names it within the rollout, with slashes, such as `messages/3/content`."""
    rollout = find(view, asked).rollout
    value: Any = {"messages": rollout.episode.messages if rollout.episode else rollout.task.messages}
    if rollout.episode is not None and rollout.episode.output is not None:
        value["output"] = {"text": rollout.episode.output.text, "verifier": rollout.episode.output.verifier}
    for part in (asked.text("path") or "").split("/"):
        value = _inner(value, part)
    if not isinstance(value, str):
        raise RefusedError("there is no such text", remedy="name a text of this rollout", status=404)
    begin = asked.number("from", 0)
    piece = value[begin : begin + TEXT_PIECE]
    # What is no text takes several bytes for each character.
    while len(encoded(piece)) > TEXT_BYTES:
        piece = piece[: len(piece) // 2]
    return {"text": cut(piece, TEXT_PIECE), "characters": len(value), "next": begin + len(piece)}


def copy_rollout(view: RunView, asked: Asked) -> dict[str, Any]:
    """The rollout as JSON to take along. The ids of very long chains are left out."""
    page = find(view, asked)
    shown = show_rollout(view, asked)
    chains = page.rollout.episode.chains if page.rollout.episode else ()
    fits = sum(map(len, chains)) <= COPIED_TOKENS
    for told, chain in zip(shown["chains"], chains, strict=True):
        told["ids"] = chain.ids.tolist() if fits else f"left out: {len(chain)} tokens"
        if fits:
            told |= {"mask": chain.mask.astype(int).tolist(), "versions": chain.versions.tolist()}
            told["logprobs"] = numbers(chain.logprobs.tolist())
    return shown


def _inner(value: Any, part: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(part)
    is_place = isinstance(value, list | tuple) and part.isascii() and part.isdecimal() and len(part) < 9
    return value[int(part)] if is_place and int(part) < len(value) else None


def _output(episode: Episode | None) -> dict[str, Any] | None:
    if episode is None or episode.output is None:
        return None
    said = episode.output
    return {
        "runner": cut(said.runner),
        "text": cut(said.text),
        "verifier": cut(said.verifier),
        "exit_code": said.exit_code,
        "start_seconds": said.start_seconds,
        "run_seconds": said.run_seconds,
    }


def _reward(reward: Reward) -> dict[str, Any]:
    match reward:
        case Scored():
            return {
                "kind": "scored",
                "value": reward.value,
                "parts": cut(dict(reward.parts)),
                "answer": cut(reward.answer),
                "evidence": cut(reward.evidence),
            }
        case Failed():
            return {"kind": "failed", "cause": reward.cause, "error": cut(reward.error), "detail": cut(reward.detail)}
        case _:
            return {"kind": "unscored"}


def _trained(trained: TrainedTokens | None) -> dict[str, Any] | None:
    """What its train step computed of it."""
    if trained is None:
        return None
    push = None if trained.push is None else numbers([trained.push], 4)[0]
    return {"advantage": trained.advantage, "token_weight": trained.token_weight, "push": push}


def _chains(chains: tuple[TokenChain, ...]) -> Iterator[dict[str, Any]]:
    for chain, branch in zip(chains, chain_tree(chains), strict=True):
        sampled = chain.versions[chain.mask]
        yield {
            "tokens": len(chain),
            "sampled": chain.sampled,
            "trained": chain.trained,
            "start": chain.start,
            "parent": branch.parent,
            "shared": branch.shared,
            "versions": sorted({int(version) for version in sampled}),
            "constrained": sum(end - begin for begin, end in chain.constrained),
        }


def _rejudged(view: RunView, page: RolloutPage) -> Iterator[dict[str, Any]]:
    """What other judgers said of this rollout."""
    folder = view.inside(view.folder.rejudged)
    for one in sorted(folder.iterdir()) if folder.is_dir() else ():
        scores = view.inside(one / "scores.jsonl")
        if scores.is_file():
            judgement = RejudgedScores(one).of(page.rollout.key, page.round)
            if judgement is not None:
                yield {"judger": cut(one.name), "score": judgement.after, "failure": cut(judgement.failure)}


def sampled_of(rollout: Rollout, chain: int) -> TokenChain:
    """One chain of a rollout. Raises if it has none of that number."""
    chains = rollout.episode.chains if rollout.episode else ()
    if chain >= len(chains):
        raise RefusedError(f"this rollout has {len(chains)} chains", remedy="choose one of them", status=404)
    return chains[chain]
