"""Manages sessions over HTTP. This is for the program that runs agents, not for the agents themselves."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from loopwright.errors import ConfigError
from loopwright.gateway.http import TEXT, Request
from loopwright.gateway.metrics import Metrics
from loopwright.gateway.offer import Offer
from loopwright.gateway.openapi import openapi_document
from loopwright.gateway.reading import count, number, read_json, strings, text
from loopwright.gateway.record import chain_to_json, record_of, record_to_json
from loopwright.gateway.refusals import Code, invalid, refused
from loopwright.gateway.registration import registration_from_json
from loopwright.gateway.routes import Target
from loopwright.gateway.runs import Runs
from loopwright.gateway.session import Session, SessionSettings, SessionState
from loopwright.gateway.sessions import Sessions
from loopwright.render.recording.recorder import Recorder
from loopwright.render.recording.session_drift import session_drift
from loopwright.serve.lease import LINEAGE_HEADER, RUN_HEADER, LeaseHolder
from loopwright.types import Sampling

SHORTEST_TTL, LONGEST_TTL = 1.0, 7 * 24 * 3600.0
LONGEST_AFFINITY = 256


class Management:
    """`base_url` is the URL under which agents reach the gateway. None means the host name that the creator of a
    session used. With `runs`, training runs bring the model."""

    def __init__(
        self, sessions: Sessions, metrics: Metrics, offer: Offer, base_url: str | None, runs: Runs | None
    ) -> None:
        self._sessions = sessions
        self._offer = offer
        self._metrics = metrics
        self._base_url = base_url
        self._runs = runs

    async def health(self, request: Request, target: Target) -> None:
        await request.answer(200, {"status": "ok", "model": self._offer.name})

    async def run(self, request: Request, target: Target) -> None:
        runs = self._runs
        if runs is None:
            raise refused(
                Code.UNKNOWN,
                "this gateway has a model of its own",
                remedy="name one that was started with --for-runs",
            )
        match request.method:
            case "PUT":
                registration, seconds = registration_from_json(read_json(await request.body()))
                await runs.register(registration, seconds)
                await request.answer(200, self._open_sessions(runs))
            case "DELETE":
                await runs.leave(_asking(request))
                await request.answer(200, {"run": None})
            case _:
                holder = runs.holder
                held_by = {"run": None} if holder is None else {"run": holder.run, "lineage": holder.lineage}
                told = self._open_sessions(runs) if holder is not None and holder == _asking(request) else {}
                await request.answer(200, {**held_by, **told})

    async def show_metrics(self, request: Request, target: Target) -> None:
        await request.answer_bytes(200, self._metrics.text(self._sessions.counts()).encode(), (TEXT,))

    async def openapi(self, request: Request, target: Target) -> None:
        await request.answer(200, openapi_document(self._base_url or _reached(request)))

    async def sessions(self, request: Request, target: Target) -> None:
        if request.method == "POST":
            await self._create(request, None)
            return
        listed = [_listed(session) for session in self._sessions]
        await request.answer(200, {"sessions": listed})

    async def session(self, request: Request, target: Target) -> None:
        match request.method:
            case "POST":
                await self._create(request, target.session)
            case "DELETE":
                self._check_run(request)
                session = self._at_version(request, target)
                self._sessions.delete(session)
                await request.answer(200, {"id": session.id, "deleted": True})
            case "HEAD":
                await self.health(request, target)
            case _:
                session = self._sessions.find(target.session or "")
                await request.answer(200, self._described(session, self._sessions.recorder_of(session)))

    async def complete(self, request: Request, target: Target) -> None:
        self._check_run(request)
        session = self._sessions.find(target.session or "")
        is_first_time = session.state is SessionState.OPEN
        recorder = self._sessions.end(session)
        model = await self._offer.ready()
        drift = await asyncio.to_thread(session_drift, recorder, model.renderer)
        if is_first_time:
            self._metrics.drift_tokens += drift.wrong
        measured = {
            "recorded": drift.tokens,
            "wrong": drift.wrong,
            "lost": drift.lost,
            "invented": drift.invented,
            "first": drift.first and asdict(drift.first),
        }
        await request.answer(200, {**self._described(session, recorder), "now": time.time(), "drift": measured})

    async def chains(self, request: Request, target: Target) -> None:
        session, recorder = self._recorded(request, target)
        chains = [chain_to_json(chain) for chain in recorder.chains()]
        await request.answer(200, {"id": session.id, "version": session.version, "chains": chains})

    async def record(self, request: Request, target: Target) -> None:
        session, recorder = self._recorded(request, target)
        record = record_to_json(record_of(session, recorder))
        facts = {"id": session.id, "version": session.version, "state": session.state, "outcome": session.outcome}
        await request.answer(200, {**facts, **record})

    async def outcome(self, request: Request, target: Target) -> None:
        self._check_run(request)
        session = self._at_version(request, target)
        if session.state is SessionState.OPEN:
            raise refused(
                Code.CONFLICT, f"session {session.id} is open", remedy="complete the session before you say its outcome"
            )
        self._sessions.note_outcome(session, read_json(await request.body()))
        await request.answer(200, {"id": session.id, "version": session.version})

    def _recorded(self, request: Request, target: Target) -> tuple[Session, Recorder]:
        session = self._at_version(request, target)
        if not self._sessions.has_record(session):
            raise refused(
                Code.GONE,
                f"the record of session {session.id} is only with the run that opened it",
                remedy="read it before the session ends, or from the run's rollouts",
            )
        return session, self._sessions.recorder_of(session)

    def _at_version(self, request: Request, target: Target) -> Session:
        """The session, if its record is at the version that the request names. Nothing else is read or deleted."""
        session = self._sessions.find(target.session or "")
        wanted, version = request.parameter("version"), self._sessions.version(session)
        if wanted is None or wanted == version:
            return session
        if version is None:
            raise refused(
                Code.CONFLICT,
                f"session {session.id} is open, and its record has no version yet",
                remedy="complete the session first; the answer tells the version",
            )
        raise refused(
            Code.CONFLICT,
            f"the record of session {session.id} is at version {version}, not at {wanted:.64}",
            remedy="look at the session again: it is not the one that you have completed",
        )

    def _open_sessions(self, runs: Runs) -> dict[str, Any]:
        """What the run that holds the gateway is told of its open sessions."""
        sessions = runs.open_sessions()
        return {
            "advertise_url": self._base_url,
            "now": time.time(),
            "sessions": {session.id: _times(session) for session in sessions},
            "waiting": sum(bool(session.running) for session in sessions),
        }

    def _check_run(self, request: Request) -> None:
        """Sessions of a run are managed by that run alone, while it holds the gateway."""
        if self._runs is not None:
            self._runs.check(_asking(request))

    def _described(self, session: Session, recorder: Recorder) -> dict[str, Any]:
        return {
            "id": session.id,
            "state": session.state,
            "version": self._sessions.version(session),
            "created": session.created,
            **_times(session),
            "cut_off_calls": session.cut_off,
            "quiet_since_restart": session.quiet_since_restart,
            "turns": len(recorder),
            "chains": len(recorder.starts),
            "starts": Counter(start.value for start in recorder.starts),
            "sampled_tokens": recorder.sampled_tokens,
            "omitted": Counter(kind for turn in recorder.turns for kind in turn.omitted),
            "wishes": [turn.wishes for turn in recorder.turns],
        }

    async def _create(self, request: Request, id: str | None) -> None:
        self._check_run(request)
        body = await request.body()
        session, key = self._sessions.create(id, settings_from(read_json(body) if body.strip() else {}))
        urls = base_urls(self._base_url or _reached(request), session.id)
        await request.answer(201, {"id": session.id, "key": key, "base_urls": urls, "model": self._offer.name})


def _listed(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "state": session.state,
        "created": session.created,
        "label": session.settings.label,
        "has_outcome": session.outcome is not None,
    }


def _times(session: Session) -> dict[str, float | None]:
    first = session.first_call
    return {
        "first_call": None if first is None else first.time,
        "held_seconds": session.held_seconds,
        "held_before_first_call": None if first is None else first.held_seconds,
    }


def _asking(request: Request) -> LeaseHolder | None:
    """The run that asks, if it says so."""
    said = {name: value for name in (RUN_HEADER, LINEAGE_HEADER) if (value := request.header(name)) is not None}
    return LeaseHolder.of_headers(said)


def _reached(request: Request) -> str:
    return f"http://{request.header('host') or '127.0.0.1'}"


def base_urls(gateway: str, session: str) -> dict[str, str]:
    """The base URLs of a session, by dialect."""
    base = f"{gateway}/sessions/{session}"
    return {"openai": f"{base}/v1", "anthropic": base, "gemini": base}


def settings_from(body: Mapping[str, Any]) -> SessionSettings:
    """The settings in a request. With `sampling`, they override what the agent asks for."""
    given = body.get("sampling")
    if given is not None and not isinstance(given, dict):
        raise invalid("sampling", "expected an object", remedy="name temperature, top_p, top_k and max_new_tokens")
    return SessionSettings(
        sampling=None if given is None else _sampling(given),
        max_tokens=count(body, "max_tokens"),
        ttl_seconds=number(body, "ttl_seconds", least=SHORTEST_TTL, most=LONGEST_TTL) or SessionSettings().ttl_seconds,
        seed=count(body, "seed", least=0, most=(1 << 63) - 1) or 0,
        label=text(body.get("label"), "label"),
        affinity=text(body.get("affinity"), "affinity")[:LONGEST_AFFINITY],
    )


def _sampling(given: Mapping[str, Any]) -> Sampling:
    temperature, top_p = number(given, "temperature", least=0, most=100), number(given, "top_p", least=0, most=1)
    try:
        return Sampling(
            temperature=1.0 if temperature is None else temperature,
            max_new_tokens=count(given, "max_new_tokens") or Sampling().max_new_tokens,
            top_k=count(given, "top_k", least=0) or 0,
            top_p=1.0 if top_p is None else top_p,
            stop=strings(given, "stop"),
        )
    except ConfigError as error:
        raise invalid("sampling", error.message, remedy=error.remedy) from error
