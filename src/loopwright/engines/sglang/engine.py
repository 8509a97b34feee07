"""An SGLang server as an engine.

The invariants. SGLang labels an answer with the weights of its end, so no answer may span an update: a pause ends all
of them, and they go on from their tokens after the proof. A token is stamped with the version that was loaded when its
request was sent (T4), and every label confirms it. Cached keys are bound to a version by `extra_key`, which is never
used again, also not by the resumed run, whose version 7 is another one.

An update is: pause and abort, load without a flush, flush and see that it was done, continue. A flush within the update
would end the server if it failed. SGLang's other pauses are never used: `in_place` goes on with old keys, and `retract`
leaves the old keys of prompts in the tree of prefixes.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from loopwright.core.partial_answer import PartialAnswer, joined
from loopwright.engines.http.caller import COMMAND_SECONDS, SILENCE_SECONDS, EngineCaller, broke_off
from loopwright.engines.http.calls_out import CallOut, CallsOut
from loopwright.engines.http.connection import Connections, Patience
from loopwright.engines.http.fields import Fields
from loopwright.engines.http.model_card import MODELS, ModelCard, card_from_json
from loopwright.engines.http.wire import answer_read
from loopwright.engines.pause_gate import PauseGate
from loopwright.engines.sglang.folder import folder_of
from loopwright.engines.sglang.wire import (
    GENERATE,
    part_from_sglang,
    prompt_logprobs_from_sglang,
    request_to_sglang,
    score_to_sglang,
)
from loopwright.engines.temperature_check import check_temperature
from loopwright.engines.version_labels import VersionLabels
from loopwright.errors import (
    AlternativesError,
    ConstraintError,
    EngineError,
    EngineLostError,
    LeaseError,
    LoopwrightError,
    ModelError,
    WeightsError,
)
from loopwright.ports import OnPart
from loopwright.serve.lease import LeaseHolder
from loopwright.types import (
    IN_PLACE,
    NOTHING_YET,
    EngineCapacity,
    FinishReason,
    GenerateRequest,
    Generation,
    PauseMode,
    ProbeAnswer,
    TensorSpec,
    WeightFile,
    WeightUpdate,
)

PAUSE_SECONDS = 60.0
"""How long a pause by abort may take. A paused server does not answer /health, so nothing else can be asked then."""
CUT_SECONDS = 1.0
"""How long to wait for aborted answers to arrive."""
CUT_TRIES = 3
"""How often the server is paused again, because a request reached it after the pause."""
FLUSH_SECONDS = 30
TAKE_BACK_SECONDS = 0.5
TAKE_BACK_TRIES = 4
"""How often an abort is sent for a call that was cancelled: the first may come before the request itself."""
UNCHANGED = ("Failed to get weights iterator", "Failed to get model loader")
"""What SGLang says when it has not touched its weights. Its other way back reads the new weights again."""
LABEL_PARTS = 3
"""Run, lineage and version. What a server is called when it is started has fewer."""
REMEDY_FOR_LOGPROBS = "start it without SGLANG_RETURN_ORIGINAL_LOGPROB"


@dataclass(slots=True, eq=False)
class _Call(CallOut):
    """`ids` are those of its tokens so far."""

    ids: list[int] = field(default_factory=list)
    goes_on: bool = False
    """It stopped at an end token of the model that the request does not stop at."""


class SglangEngine:
    """A `StreamingEngine` over an SGLang server. `connect` makes it.

    `labels` name the versions of the run that owns the server's weights. Without them the server is only asked, never
    updated.
    """

    def __init__(
        self, connections: Connections, labels: VersionLabels | None, silence_seconds: float = SILENCE_SECONDS
    ) -> None:
        self._caller = EngineCaller(connections, silence_seconds)
        self._labels = labels
        self._version = 0
        self._extra_key: str | None = None
        self._is_loaded = False
        self._own_labels: set[str] = set()
        """The labels of the weights that were loaded last, and of those before: they change while an update is out."""
        self._tensors: Mapping[str, TensorSpec] | None = None
        self._is_incremental = False
        self._gate = PauseGate()
        self._calls = CallsOut(self._take_back)
        self._is_server_paused: bool | None = None

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, url: str, key: str | None, *, labels: VersionLabels | None = None, silence_seconds: float = SILENCE_SECONDS
    ) -> AsyncIterator[Self]:
        """The server at `url`. With `labels`, it must be one whose weights can be updated."""
        with Connections(url, key) as connections:
            engine = cls(connections, labels, silence_seconds)
            await engine._read_options()
            if labels is not None:
                await check_temperature(engine, url, REMEDY_FOR_LOGPROBS)
            yield engine

    @property
    def version(self) -> int:
        return self._version

    @property
    def workers(self) -> int:
        """One process receives weights."""
        return 1

    def held_seconds(self) -> float:
        """A server does not count for how long it answers nobody."""
        return 0.0

    async def lease(self, holder: LeaseHolder, seconds: float) -> None:
        """SGLang has no place for a lease. So this only sees whether the server is there and has our weights. It asks
        no /health, because a paused server does not answer it.

        Raises LeaseError if another run has updated the server, and EngineLostError if it was started again.
        """
        label = await self._label(self._caller.little_patience)
        if not self._is_loaded or label in self._own_labels:
            return
        if label.count(":") < LABEL_PARTS - 1:
            raise self._broken("was started again")
        raise LeaseError(
            f"the server at {self._caller.url} has the weights {label!r}, which are not of {holder}",
            remedy="wait for the other run to end, or use another server",
        )

    async def release(self) -> None:
        """There is nothing to give back."""

    async def model(self) -> ModelCard:
        """Which model is served. After an update, the server's model path is that of the new weights."""
        card = card_from_json(await self._caller.command("GET", MODELS))
        told = await self._caller.command("GET", "/model_info")
        return ModelCard(str(told.get("tokenizer_path") or card.source), card.max_context)

    async def capacity(self) -> EngineCapacity:
        """What the server says of itself when it starts."""
        told = await self._caller.command("GET", "/server_info")
        tokens, sequences = told.get("max_total_num_tokens"), told.get("max_running_requests")
        return EngineCapacity(
            tokens if isinstance(tokens, int) else None, sequences if isinstance(sequences, int) else None
        )

    async def generate(self, request: GenerateRequest, on_part: OnPart | None = None) -> Generation:
        """Always streamed: if the server dies, the tokens that have arrived are kept."""
        if request.sampling.max_new_tokens == 0:
            return Generation((), (), (), FinishReason.LENGTH)
        if request.constraint is not None:
            raise ConstraintError(
                "answers of an SGLang server cannot be constrained here",
                remedy="ask without a schema and without a required tool, or serve with vLLM or `loopwright engine`",
            )
        if request.alternatives:
            raise AlternativesError(
                "the likeliest tokens are not asked of an SGLang server here",
                remedy="ask without top_logprobs, or serve with vLLM or `loopwright engine`",
            )
        answer = PartialAnswer(request, on_part)
        while True:
            rest = answer.rest()
            if not await self._gate.admit(rest):
                return answer.add(NOTHING_YET)
            call = self._call(rest)
            sampled = answer.add(await self._calls.answer(call, self._asked(call, answer.hear)))
            if not call.goes_on:
                return sampled
            if answer.is_full:
                return answer.cut_by_length()

    async def abort(self, request_id: str) -> None:
        self._gate.abort(request_id)
        for name in self._calls.names(request_id):
            await self._abort(name)

    async def pause(self, mode: PauseMode = PauseMode.DRAIN) -> None:
        if mode is PauseMode.KEEP:
            raise EngineError(
                "an SGLang server cannot keep requests across an update: it would go on with keys of the old weights, "
                "and label all tokens with the new ones",
                remedy="set produce.in_flight to abort or drain",
            )
        self._gate.close()
        if mode is PauseMode.DRAIN and not await self._calls.ended(COMMAND_SECONDS):
            raise self._broken(f"has not answered its last requests within {COMMAND_SECONDS:g} s")
        if self._is_server_paused is None:
            # Somebody may have left it paused in place. A pause by abort would never end then.
            await self._continue()
        if not self._is_server_paused:
            await self._pause_server()
        await self._cut()

    async def resume(self) -> None:
        if self._is_server_paused is not False:
            await self._continue()
        self._gate.open()

    async def load(self, version: int, update: WeightUpdate = IN_PLACE) -> None:
        """Update the server's weights. A server that failed while it loaded is lost: nobody knows what it has."""
        if self._labels is None or not isinstance(update, WeightFile):
            raise EngineError(
                "an SGLang server gets weights of its own run only, and as a file",
                remedy="attach it with kind: sglang, on the machine of the learner",
            )
        was_going_on = self._gate.is_open
        if was_going_on or not self._is_server_paused:
            await self.pause(PauseMode.ABORT)
        try:
            await self._update(version, update, self._labels)
        except WeightsError:
            if was_going_on:
                await self.resume()
            raise
        await self._flush()
        self._version, self._is_loaded, self._tensors = version, True, update.tensors
        self._extra_key = self._labels.salt(version)
        if was_going_on:
            await self.resume()

    async def probe(self, request: GenerateRequest) -> ProbeAnswer:
        """A paused server answers nobody. No request of ours is there while we are paused, so it goes on: what we send
        is all that it does."""
        if self._is_server_paused is not False:
            await self._continue()
        call = self._call(request)
        body = score_to_sglang(request, uuid.uuid4().hex, self._extra_key)
        scored = await self._caller.asked("POST", GENERATE, body, self._caller.patience)
        with answer_read():
            prompt_logprobs, label = prompt_logprobs_from_sglang(scored, request.prompt_ids)
        self._check_label(label, call)
        return ProbeAnswer(prompt_logprobs, await self._asked(call, lambda part: None))

    def _call(self, request: GenerateRequest) -> _Call:
        # All names have one length: SGLang aborts every request whose name begins with the given one.
        return _Call(request, uuid.uuid4().hex, self._version)

    async def _asked(self, call: _Call, on_part: OnPart) -> Generation:
        body = request_to_sglang(call.request, call.name, self._extra_key)
        async with self._caller.stream(GENERATE, body) as events:
            async for is_event, said in events:
                if not is_event:
                    continue
                with answer_read():
                    part = part_from_sglang(said, call.ids, incremental=self._is_incremental)
                version = self._check_label(part.label, call)
                finish = part.finish or FinishReason.ABORT
                sampled = Generation(part.ids, part.logprobs, (version,) * len(part.ids), finish)
                call.ids += part.ids
                call.parts.append(sampled)
                if part.finish is not None:
                    stops = call.request.sampling.stop_token_ids
                    call.goes_on = isinstance(part.matched, int) and part.matched not in stops
                    return joined(call.parts)
                if part.ids:
                    on_part(sampled)
        raise broke_off()

    def _check_label(self, label: str, call: _Call) -> int:
        """The version that tokens with this label have."""
        if self._labels is None:
            # Whoever names the weights of this server: a number at the end is taken for their version.
            number = label.rpartition(":")[2]
            return int(number) if number.isdigit() else 0
        if self._is_loaded and label != self._labels.of(call.version):
            raise EngineError(
                f"the server at {self._caller.url} says that its weights are {label!r}, and the request was for "
                f"{self._labels.of(call.version)!r}",
                remedy="nobody but the run may update the server: see who else uses it",
            )
        return call.version

    async def _take_back(self, call: CallOut, asking: asyncio.Task[Generation]) -> None:
        """End a request that nobody waits for any more. SGLang forgets the name of a stream whose reader leaves, and
        samples it to its end; so it is aborted first."""
        with suppress(LoopwrightError):
            for _ in range(TAKE_BACK_TRIES):
                await self._abort(call.name)
                if (await asyncio.wait({asking}, timeout=TAKE_BACK_SECONDS))[0]:
                    return

    async def _abort(self, name: str) -> None:
        await self._caller.text("POST", "/abort_request", {"rid": name}, self._caller.little_patience)

    async def _pause_server(self) -> None:
        await self._caller.asked("POST", "/pause_generation", {"mode": "abort"}, Patience(PAUSE_SECONDS))
        self._is_server_paused = True

    async def _continue(self) -> None:
        await self._caller.command("POST", "/continue_generation", {})
        self._is_server_paused = False

    async def _cut(self) -> None:
        """See that all answers have been returned. A request that came after the pause is parked by the server, where
        no abort reaches it, and would be sampled when the server goes on. So the server goes on now, with the weights
        that the request was sent for, and is paused again."""
        for _ in range(CUT_TRIES):
            if await self._calls.ended(CUT_SECONDS):
                return
            await self._continue()
            await self._pause_server()
        await self._calls.cut(CUT_SECONDS)

    def _check_tensors(self, version: int, file: WeightFile) -> None:
        """SGLang keeps the old weights of a tensor that is missing, and dies of one with another shape. So every update
        must have the tensors of the one before. That the first has the right ones is for the proof to find out."""
        if self._tensors is not None and self._tensors != file.tensors:
            changed = {*self._tensors.items()} ^ {*file.tensors.items()}
            raise WeightsError(
                f"the weights of version {version} have not the tensors of the version before: "
                f"{min(name for name, _ in changed)!r} differs; nothing was changed",
                remedy="publish all weights of the model that is trained",
            )

    async def _update(self, version: int, update: WeightFile, labels: VersionLabels) -> None:
        """Raises WeightsError if the server has kept its weights."""
        self._check_tensors(version, update)
        label = labels.of(version)
        self._own_labels = {label, labels.of(self._version)}
        async with folder_of(update) as folder:
            await self._read(version, {"model_path": str(folder), "flush_cache": False, "weight_version": label})

    async def _read(self, version: int, body: Any) -> None:
        """Have the server read new weights, and see that it has them."""
        try:
            said = await self._caller.command("POST", "/update_weights_from_disk", body)
        except EngineLostError:
            raise
        except EngineError as error:
            if any(words in error.message for words in UNCHANGED):
                raise WeightsError(
                    f"the server at {self._caller.url} cannot read the weights of version {version}: {error.message}; "
                    "nothing was changed",
                    remedy="start the server on this machine, as a user who may read the run's files",
                ) from error
            raise self._broken(f"did not load the weights of version {version}: {error.message}") from error
        try:
            label = await self._label(self._caller.patience)
        except EngineError as error:
            raise self._broken(f"does not say that it has the weights of version {version}: {error.message}") from error
        if not (isinstance(said, dict) and said.get("success")) or label != body["weight_version"]:
            raise self._broken(f"did not take the weights of version {version}: it says {said}, and has {label!r}")

    async def _flush(self) -> None:
        try:
            await self._caller.text("POST", f"/flush_cache?timeout={FLUSH_SECONDS}", None, Patience(2 * FLUSH_SECONDS))
        except EngineLostError:
            raise
        except EngineError as error:
            raise self._broken(f"did not flush its cache after an update: {error.message}") from error

    async def _label(self, patience: Patience) -> str:
        told = await self._caller.asked("GET", "/model_info", None, patience)
        with answer_read():
            return Fields(told, "the model's description").string("weight_version")

    def _broken(self, what: str) -> EngineLostError:
        return EngineLostError(f"the server at {self._caller.url} {what}", remedy="nothing to do: it is replaced")

    async def _read_options(self) -> None:
        """Read how the server was started. Refuse one that cannot be updated, before anything is trained."""
        options = await self._caller.command("GET", "/server_info")
        if not isinstance(options, dict):
            raise EngineError(f"the server at {self._caller.url} is no SGLang server", remedy="correct its address")
        self._is_incremental = bool(options.get("incremental_streaming_output") or options.get("stream_output"))
        if self._labels is None:
            number = (await self._label(self._caller.patience)).rpartition(":")[2]
            self._version = int(number) if number.isdigit() else 0
        elif options.get("dp_size", 1) != 1 and not options.get("enable_dp_attention"):
            raise ModelError(
                f"the server at {self._caller.url} has dp_size {options['dp_size']}: SGLang cannot update its weights",
                remedy="start one server for each copy of the model, and name all of them in rollout.engine.urls",
            )
