"""A vLLM server as an engine.

The invariants. A token is stamped with the version of the weights that were loaded when its request was sent (T4), and
the server's own label confirms it at the end. No request lives across an update: a pause ends all of them, and they go
on from their tokens after the proof, so nothing is sampled with unproven weights. Cached keys are bound to a version by
a salt that is never used again, also not by the resumed run, whose version 7 is another one. Tokens of a constrained
answer do not train: vLLM tells their logprobs after its mask (T8).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Self

from loopwright.core.adapter_names import are_adapters
from loopwright.core.partial_answer import joined
from loopwright.engines.http.caller import COMMAND_SECONDS, SILENCE_SECONDS, EngineCaller, broke_off
from loopwright.engines.http.calls_out import CallOut, CallsOut
from loopwright.engines.http.connection import Connections, Patience, give_up
from loopwright.engines.http.model_card import MODELS, ModelCard, card_from_json
from loopwright.engines.http.wire import GENERATE, answer_read, update_to_json
from loopwright.engines.pause_gate import PauseGate
from loopwright.engines.temperature_check import check_temperature
from loopwright.engines.version_labels import VersionLabels
from loopwright.engines.vllm.adapters import ServedAdapters
from loopwright.engines.vllm.wire import (
    cache_tokens_of,
    part_from_json,
    prompt_logprobs_from_json,
    request_to_vllm,
    score_request,
    versions_from_json,
)
from loopwright.errors import (
    AlternativesError,
    ConstraintError,
    EngineError,
    EngineLostError,
    LeaseError,
    ModelError,
    ProofError,
    UnanswerableError,
    WeightsError,
)
from loopwright.ports import OnPart
from loopwright.serve.lease import LeaseHolder, lease_to_json
from loopwright.types import (
    IN_PLACE,
    NOTHING_YET,
    EngineCapacity,
    FinishReason,
    GenerateRequest,
    Generation,
    InPlace,
    PauseMode,
    ProbeAnswer,
    WeightFile,
    WeightUpdate,
)

SEEN_BY_SERVER = "generate-tokens-"
"""vLLM puts this before the name of a request."""
MODES = {PauseMode.DRAIN: "wait", PauseMode.ABORT: "abort"}
CUT_SECONDS = 5.0
"""How long to wait for aborted answers to arrive. A request that reached the server after the pause waits there, and is
taken back."""
FOR_COMMANDS = Patience(COMMAND_SECONDS)
EXTENSION = "loopwright_vllm.WeightLoader"
REMEDY_FOR_LOGPROBS = "start it with --logprobs-mode processed_logprobs"


class VllmEngine:
    """A `StreamingEngine` over a vLLM server. `connect` makes it.

    `labels` name the versions of the run that owns the server's weights. Without them the server is only asked, never
    updated. One that `sleeps` gives its memory to the learner while it is paused.
    """

    def __init__(
        self,
        connections: Connections,
        labels: VersionLabels | None,
        silence_seconds: float = SILENCE_SECONDS,
        *,
        sleeps: bool = False,
    ) -> None:
        self._caller = EngineCaller(connections, silence_seconds)
        self._labels = labels
        self._sleeps = sleeps
        self._asleep: tuple[str, ...] = ()
        """What of the server's memory is released."""
        self._version = 0
        self._salt: str | None = None
        self._is_loading = False
        self._is_loaded = False
        self._knows_temperature = False
        """Whether a server that is not ours was seen to tell the logprobs of the temperature."""
        self._is_leased = False
        self._workers = 1
        self._holder: LeaseHolder | None = None
        self._numbers = itertools.count()
        self._adapters = ServedAdapters(self._told)
        self._gate = PauseGate()
        self._calls = CallsOut()
        self._is_server_paused = False

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str,
        key: str | None,
        *,
        labels: VersionLabels | None = None,
        silence_seconds: float = SILENCE_SECONDS,
        sleeps: bool = False,
    ) -> AsyncIterator[Self]:
        """The server at `url`. With `labels`, it must have our worker extension."""
        with Connections(url, key) as connections:
            engine = cls(connections, labels, silence_seconds, sleeps=sleeps)
            if labels is not None:
                await engine._check_extension()
                await check_temperature(engine, url, REMEDY_FOR_LOGPROBS)
            yield engine

    @property
    def version(self) -> int:
        return self._version

    @property
    def workers(self) -> int:
        """How many processes receive weights: as many as the model is split over."""
        return self._workers

    def held_seconds(self) -> float:
        """A server does not count for how long it answers nobody."""
        return 0.0

    async def lease(self, holder: LeaseHolder, seconds: float) -> None:
        """The extension keeps the lease, and refuses the weights of others while it lives. A server that was started
        again has no lease and not our weights, so it counts as lost."""
        asked = {**lease_to_json(holder, seconds), "renews": self._is_leased}
        # Whoever waits for longer has lost the lease before it knows. Workers that load weights answer when they are
        # done, and a load has a deadline of its own.
        patience = Patience(seconds / 2, self._give_up_unless_loading)
        for said in await self._in_workers("loopwright_lease", asked, patience):
            match said:
                case {"status": "held"}:
                    continue
                case {"status": "refused", "why": str(why)}:
                    raise LeaseError(
                        f"{self._caller.url}: {why}", remedy="wait for that run to end, or use another server"
                    )
            raise EngineLostError("the server was started again", remedy="nothing to do: it gets the weights again")
        self._is_leased, self._holder = True, holder

    async def release(self) -> None:
        if self._holder is not None:
            await self._in_workers("loopwright_lease", {**lease_to_json(self._holder, 0.0), "renews": True})

    async def model(self) -> ModelCard:
        """Which model is served."""
        return card_from_json(await self._caller.command("GET", MODELS))

    async def capacity(self) -> EngineCapacity:
        """How many tokens its cache holds, from its metrics."""
        return EngineCapacity(cache_tokens_of(await self._caller.text("GET", "/metrics", None, self._caller.patience)))

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        """Always streamed: if the server dies, the tokens that have arrived are kept.

        vLLM begins every request at the beginning of its grammar. So a constrained answer is told as a whole, and
        begins again if it was cut.
        """
        if request.sampling.max_new_tokens == 0:
            return Generation((), (), (), FinishReason.LENGTH)
        if request.alternatives:
            await self._check_alternatives(request)
        if request.constraint is not None:
            return await self._constrained(request)
        if not await self._gate.admit(request):
            return NOTHING_YET
        call = self._call(request)
        return await self._calls.answer(call, self._asked(call, on_part))

    async def _check_alternatives(self, request: GenerateRequest) -> None:
        """Refuse to tell the likeliest tokens of another distribution than log-softmax(logits / T) (T8)."""
        sampling = request.sampling
        if request.constraint is not None or sampling.top_k > 0 or sampling.top_p < 1:
            raise AlternativesError(
                "vLLM tells the likeliest tokens after its mask, and after top_k and top_p",
                remedy="ask without top_logprobs, or without a form of the answer, top_k and top_p",
            )
        if self._labels is None and sampling.temperature not in (0, 1) and not self._knows_temperature:
            try:
                await check_temperature(self, self._caller.url, REMEDY_FOR_LOGPROBS)
            except ModelError as error:
                raise AlternativesError(error.message, remedy=error.remedy) from error
            self._knows_temperature = True

    async def _constrained(self, request: GenerateRequest) -> Generation:
        if request.sampled_before:
            raise ConstraintError(
                "vLLM cannot go on with an answer within its grammar", remedy="ask for the whole answer again"
            )
        if not await self._gate.admit(request):
            return NOTHING_YET
        call = self._call(request)
        try:
            answer = await self._calls.answer(call, self._asked(call, None))
        except UnanswerableError as error:
            raise ConstraintError(
                error.message, remedy="correct the schema, or leave out what is not supported"
            ) from error
        if answer.finish is FinishReason.ABORT:
            return NOTHING_YET
        return replace(answer, constrained=((0, len(answer.ids)),) if answer.ids else ())

    async def abort(self, request_id: str) -> None:
        self._gate.abort(request_id)
        if names := [f"{SEEN_BY_SERVER}{name}" for name in self._calls.names(request_id)]:
            await self._caller.command("POST", "/abort_requests", {"request_ids": names})

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        if mode not in MODES:
            raise EngineError(
                "a vLLM server cannot keep requests across an update: it would go on before its new weights are proven",
                remedy="set produce.in_flight to abort or drain",
            )
        self._gate.close()
        self._is_server_paused = True
        await self._told(f"/pause?mode={MODES[mode]}")
        if mode is PauseMode.ABORT:
            await self._calls.cut(CUT_SECONDS)
        if self._sleeps:
            # Level 1 keeps the weights in the machine's memory: if an update is refused, the old ones still serve.
            await self._told("/sleep?level=1")
            self._asleep = ("weights", "kv_cache")

    async def resume(self) -> None:
        await self._wake()
        self._gate.open()

    async def load(self, version: int, update: WeightUpdate = IN_PLACE) -> None:
        """Update the server's weights. A server that failed while it loaded is lost: it would die at the next
        request."""
        if self._labels is None or isinstance(update, InPlace):
            raise EngineError("this server's weights are not ours to change", remedy="attach it with kind: vllm")
        was_going_on = self._gate.is_open
        if was_going_on:
            await self.pause(PauseMode.ABORT)
        await self._wake_up("weights")
        if (refusal := await self._changed(version, update, self._labels)) is None:
            await self._named(version, self._labels)
        if was_going_on:
            await self.resume()
        if refusal is not None:
            raise WeightsError(
                f"the server at {self._caller.url} refused the weights of version {version}: {refusal}; nothing was "
                "changed",
                remedy="serve the model that is trained",
            )

    async def probe(self, request: GenerateRequest) -> ProbeAnswer:
        """A paused server does not answer. No request of ours is there while we are paused, so it is woken: what we
        send is all that it does."""
        await self._wake()
        body = score_request(request, self._salt, self._adapters.name)
        scored = await self._caller.asked("POST", GENERATE, body, self._caller.patience)
        with answer_read():
            prompt_logprobs = prompt_logprobs_from_json(scored, request.prompt_ids)
        return ProbeAnswer(prompt_logprobs, await self._asked(self._call(request), None))

    async def _changed(self, version: int, update: WeightUpdate, labels: VersionLabels) -> str | None:
        """Have the server load adapters, or whole weights. Gives the reason if it refused."""
        try:
            if isinstance(update, WeightFile) and are_adapters(update.tensors):
                return await self._adapters.load(labels.adapter(version), update)
            if (refusal := await self._refusal(version, update)) is None:
                await self._adapters.forget()
            return refusal
        except EngineLostError:
            raise
        except EngineError as error:
            raise self._failed(version, error.message) from error

    async def _refusal(self, version: int, update: WeightUpdate) -> str | None:
        """Have every worker load the weights. Gives the reason if all of them refused. If only some did, or if it is
        not known, the server is lost."""
        holder = {} if self._holder is None else {"holder": lease_to_json(self._holder, 0.0)}
        description = {**update_to_json(version, update), **holder}
        self._is_loading = True
        try:
            told = await self._in_workers("loopwright_load_weights", description)
        except EngineError as error:
            raise self._failed(version, error.message) from error
        finally:
            self._is_loading = False
        said = [one if isinstance(one, dict) else {"why": str(one)} for one in told]
        words = next((str(one["why"]) for one in said if "why" in one), "its workers did not say why")
        statuses = {one.get("status") for one in said}
        if statuses not in ({"loaded"}, {"refused"}):
            raise self._failed(version, words)
        return words if statuses == {"refused"} else None

    async def _named(self, version: int, labels: VersionLabels) -> None:
        """Name the weights that the server has now."""
        try:
            await self._told("/update_weight_version", {"new_version": labels.of(version)})
        except EngineError as error:
            raise self._failed(version, error.message) from error
        self._version, self._salt, self._is_loaded = version, labels.salt(version), True

    def _failed(self, version: int, why: str) -> EngineLostError:
        return EngineLostError(
            f"the server at {self._caller.url} failed while it loaded the weights of version {version}: {why}",
            remedy="nothing to do: it is replaced",
        )

    def _call(self, request: GenerateRequest) -> CallOut:
        return CallOut(request, f"{request.id}#{next(self._numbers)}", self._version)

    async def _asked(self, call: CallOut, on_part: OnPart | None) -> Generation:
        body = request_to_vllm(call.request, call.name, self._salt, self._adapters.name)
        async with self._caller.stream(GENERATE, body) as events:
            async for is_event, said in events:
                if not is_event or not said.get("choices"):
                    continue
                with answer_read():
                    part = part_from_json(said, call.version, call.request.alternatives)
                call.parts.append(part.sampled)
                if part.has_ended:
                    return self._ended(joined(call.parts), part.spans)
                if on_part is not None and part.sampled.ids:
                    on_part(part.sampled)
        raise broke_off()

    def _ended(self, answer: Generation, spans: Any) -> Generation:
        """The whole answer, with the versions that the server says."""
        labels = self._labels if self._is_loaded else None
        try:
            with answer_read():
                said = versions_from_json(spans, len(answer.ids), labels)
        except EngineError as error:
            if labels is None:
                raise
            raise self._other_weights(error.message) from error
        if labels is not None and said != answer.versions:
            raise self._other_weights(f"versions {sorted(set(said))} instead of {sorted(set(answer.versions))}")
        return Generation(answer.ids, answer.logprobs, said, answer.finish, alternatives=answer.alternatives)

    def _other_weights(self, why: str) -> ProofError:
        """The server was started again, or somebody else has updated it. Its label comes with the last token only, so
        all tokens of the answer are in doubt."""
        return ProofError(
            f"the server at {self._caller.url} sampled with other weights than its own: {why}",
            remedy="nobody but the run may update the server: see who else uses it",
        )

    async def _wake(self) -> None:
        await self._wake_up("weights", "kv_cache")
        if self._is_server_paused:
            await self._told("/resume")
            self._is_server_paused = False

    async def _wake_up(self, *parts: str) -> None:
        """Give the server back these parts of its memory. Weights come before the cache: while they are loaded, a copy
        of them needs room."""
        for part in parts:
            if part in self._asleep:
                await self._told(f"/wake_up?tags={part}")
                self._asleep = tuple(other for other in self._asleep if other != part)

    async def _told(self, path: str, body: Any = None) -> None:
        """Give a command whose answer says nothing more. It has a deadline: a server that hangs may still answer
        /health."""
        await self._caller.text("POST", path, body, FOR_COMMANDS)

    async def _check_extension(self) -> None:
        """Refuse a server that cannot be updated rightly, before anything is trained."""
        try:
            said = await self._in_workers("loopwright_about", {})
        except EngineLostError:
            raise
        except EngineError as error:
            raise ModelError(
                f"the server at {self._caller.url} has no worker extension of ours: {error.message}",
                remedy="start it with VLLM_SERVER_DEV_MODE=1, --enable-scale-out, --logprobs-mode processed_logprobs, "
                f"--worker-extension-cls {EXTENSION} and the folder of `loopwright vllm-extension` in PYTHONPATH",
            ) from error
        self._workers = len(said)
        for about in said:
            why = about.get("refuses") if isinstance(about, dict) else f"it said {about!r}"
            if why:
                raise ModelError(
                    f"the server at {self._caller.url} cannot be updated rightly: {why}",
                    remedy="serve another model, or sample with another kind of engine",
                )

    async def _give_up_unless_loading(self) -> None:
        if not self._is_loading:
            await give_up()

    async def _in_workers(self, method: str, argument: Any, patience: Patience = FOR_COMMANDS) -> Sequence[Any]:
        """What each worker returned."""
        body = {"method": method, "args": [json.dumps(argument)]}
        said = await self._caller.asked("POST", "/collective_rpc", body, patience)
        results = said.get("results") if isinstance(said, dict) else None
        if not isinstance(results, list) or not results:
            raise EngineError(
                f"the workers gave no answer to {method}: {str(said)[:200]}", remedy="see the server's log"
            )
        return results
