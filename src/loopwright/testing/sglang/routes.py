"""SGLang's routes, their keys and their errors."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from loopwright.testing.sglang.asks import GenerateAsk, RefusedValueError, SchemaError, asks_from_json
from loopwright.testing.sglang.faults import Faults
from loopwright.testing.sglang.frontend import Frontend
from loopwright.testing.sglang.scheduler import Scheduler
from loopwright.testing.sglang.updates import Updates

VERSION = "0.5.18"
MODES = ("abort", "in_place", "retract")
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)
REQUIRED = {
    "disk": ("model_path",),
    "tensor": ("serialized_named_tensors",),
    "distributed": ("names", "dtypes", "shapes"),
    "group": ("master_address", "master_port", "rank_offset", "world_size"),
}


class Routes:
    """The handlers. `info` is what /server_info tells of the start."""

    def __init__(
        self, frontend: Frontend, scheduler: Scheduler, updates: Updates, faults: Faults, info: Mapping[str, Any]
    ) -> None:
        self._frontend, self._scheduler, self._updates = frontend, scheduler, updates
        self._faults = faults
        self._info = info

    def app(self) -> Starlette:
        made = [
            Route("/generate", self._generate, methods=["POST", "PUT"]),
            Route("/abort_request", self._abort, methods=["POST"]),
            Route("/pause_generation", self._pause, methods=["POST"]),
            Route("/continue_generation", self._continue, methods=["POST"]),
            Route("/flush_cache", self._flush, methods=["GET", "POST"]),
            Route("/update_weight_version", self._relabel, methods=["POST"]),
            Route("/release_memory_occupation", self._release, methods=["POST"]),
            Route("/resume_memory_occupation", self._resume, methods=["POST"]),
            Route("/weights_checker", self._checksum, methods=["GET", "POST"]),
            Route("/get_weights_by_name", self._tensor, methods=["GET", "POST"]),
            Route("/model_info", self._model_info),
            Route("/server_info", self._server_info),
            Route("/v1/models", self._models),
            Route("/v1/loads", self._loads),
            Route("/health", self._health),
            Route("/health_generate", self._health),
            Route("/fake/faults", self._set_faults, methods=["POST"]),
        ]
        for how in ("disk", "tensor", "distributed"):
            made.append(Route(f"/update_weights_from_{how}", self._updating(how), methods=["POST"]))
        made.append(Route("/init_weights_update_group", self._init_group, methods=["POST"]))
        made.append(Route("/destroy_weights_update_group", self._destroy_group, methods=["POST"]))
        return Starlette(routes=made, exception_handlers={RefusedValueError: _refused, SchemaError: _malformed})

    # Generation

    async def _generate(self, request: Request) -> Response:
        try:
            asks, is_batch = asks_from_json(await _body(request), self._encode)
        except TypeError as error:
            return PlainTextResponse(f"Internal Server Error: {error}", 500)
        if asks[0].stream:
            # A name that is in use is told in the stream: the status has been sent by then.
            return StreamingResponse(
                self._stream(asks, is_batch, request),
                media_type="text/event-stream",
                background=BackgroundTask(self._abort_later, asks),
            )
        self._frontend.register(asks)
        answers = await asyncio.gather(*(self._one(ask, request) for ask in asks))
        return JSONResponse(answers if is_batch else answers[0])

    def _encode(self, text: str) -> list[int]:
        return list(self._frontend.tokenizer.encode(text))

    async def _one(self, ask: GenerateAsk, request: Request) -> Any:
        async for answer in self._frontend.generate(ask, request.is_disconnected):
            return answer
        raise RuntimeError("a request has no answer")

    async def _stream(self, asks: list[GenerateAsk], is_batch: bool, request: Request) -> AsyncIterator[bytes]:
        try:
            self._frontend.register(asks)
            if is_batch:
                async for event in self._merged(asks, request):
                    yield event
            else:
                async for answer in self._frontend.generate(asks[0], request.is_disconnected):
                    yield _event(answer)
        except RefusedValueError as error:
            said = {"message": str(error), "type": "invalid_request_error", "code": error.status, "retryable": False}
            yield _event({"error": said})
        yield b"data: [DONE]\n\n"

    async def _merged(self, asks: list[GenerateAsk], request: Request) -> AsyncIterator[bytes]:
        came: asyncio.Queue[Any] = asyncio.Queue()

        async def read(index: int, ask: GenerateAsk) -> None:
            async for answer in self._frontend.generate(ask, request.is_disconnected):
                came.put_nowait({**answer, "index": index})

        async with asyncio.TaskGroup() as tasks:
            reading = [tasks.create_task(read(i, ask)) for i, ask in enumerate(asks)]
            ending = tasks.create_task(_after(reading, came))
            while (answer := await came.get()) is not None:
                yield _event(answer)
            await ending

    async def _abort_later(self, asks: list[GenerateAsk]) -> None:
        await asyncio.sleep(self._frontend.times.abort_after_stream)
        for ask in asks:
            self._frontend.abort(ask.rid, abort_all=False)

    async def _abort(self, request: Request) -> Response:
        body = await _object(request)
        self._frontend.abort(body.get("rid", ""), bool(body.get("abort_all", False)))
        return Response()

    # Control

    async def _pause(self, request: Request) -> Response:
        mode = (await _object(request)).get("mode", "abort")
        if mode not in MODES:
            raise SchemaError(f"mode: {mode!r} is none of {', '.join(MODES)}")
        await self._frontend.pause(mode)
        return JSONResponse({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, request: Request) -> Response:
        await _object(request)
        await self._frontend.go_on()
        return JSONResponse({"message": "Generation continued successfully.", "status": "ok"})

    async def _flush(self, request: Request) -> Response:
        try:
            seconds = float(request.query_params.get("timeout", "0"))
        except ValueError:
            raise SchemaError("timeout: not a number") from None
        why = await self._frontend.flush(seconds)
        return PlainTextResponse(why, 400) if why else PlainTextResponse(FLUSHED)

    def _updating(self, how: str) -> Callable[[Request], Awaitable[Response]]:
        async def update(request: Request) -> Response:
            body = _required(await _object(request), REQUIRED[how])
            success, message = await self._frontend.update(how, body)
            more = {"num_paused_requests": 0} if how == "disk" else {}
            return JSONResponse({"success": success, "message": message, **more}, 200 if success else 400)

        return update

    async def _init_group(self, request: Request) -> Response:
        body = _required(await _object(request), REQUIRED["group"])
        success, message = await self._scheduler.do(lambda: self._updates.init_group(body))
        return JSONResponse({"success": success, "message": message}, 200 if success else 400)

    async def _destroy_group(self, request: Request) -> Response:
        body = await _object(request)
        success, message = await self._scheduler.do(lambda: self._updates.destroy_group(body))
        return JSONResponse({"success": success, "message": message}, 200 if success else 400)

    async def _relabel(self, request: Request) -> Response:
        body = _required(await _object(request), ("new_version",))
        if body.get("abort_all_requests", True):
            self._frontend.abort("", abort_all=True)
        self._frontend.label = new = body["new_version"]
        return JSONResponse({"success": True, "message": f"Weight version updated to {new}", "new_version": new})

    async def _release(self, request: Request) -> Response:
        tags = (await _object(request)).get("tags")
        await self._scheduler.do(lambda: self._updates.release(tags))
        return JSONResponse(None)

    async def _resume(self, request: Request) -> Response:
        tags = (await _object(request)).get("tags")
        await self._scheduler.do(lambda: self._updates.resume(tags))
        return JSONResponse(None)

    async def _checksum(self, request: Request) -> Response:
        sums = await self._scheduler.do(self._updates.checksums)
        rank = {"checksums": sums, "per_gpu_checksum": str(hash(tuple(sums.values()))), "parallelism_info": {}}
        return JSONResponse({"success": True, "message": "Success.", "ranks": [rank], "per_engine_checksum": ""})

    async def _tensor(self, request: Request) -> Response:
        body = _required(await _object(request), ("name",))
        tensor = await self._scheduler.do(lambda: self._scheduler.model.tensor(body["name"]))
        if tensor is None:
            return JSONResponse({"error": {"message": "Get parameter by name failed"}}, 400)
        return JSONResponse(tensor.detach()[: body.get("truncate_size", 100)].tolist())

    # Information

    async def _model_info(self, request: Request) -> Response:
        config, path = self._scheduler.model.config, self._frontend.model_path
        return JSONResponse(
            {
                "model_path": path,
                "served_model_name": path,
                "tokenizer_path": self._info["tokenizer_path"],
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": self._frontend.label,
                "load_format": "auto",
                "model_type": config.model_type,
                "architectures": config.architectures,
            }
        )

    async def _models(self, request: Request) -> Response:
        name, context = self._frontend.model_path, self._scheduler.sizes.context
        card = {"id": name, "object": "model", "owned_by": "sglang", "root": name, "max_model_len": context}
        return JSONResponse({"object": "list", "data": [card]})

    async def _server_info(self, request: Request) -> Response:
        sizes = self._scheduler.sizes
        state = {"last_gen_throughput": 0.0, "memory_usage": {}, "effective_max_running_requests_per_dp": sizes.running}
        return JSONResponse(
            {
                **self._info,
                "status": "ready",
                "max_total_num_tokens": sizes.tokens,
                "max_req_input_len": sizes.context - 6,
                "internal_states": [state],
                "version": VERSION,
            }
        )

    async def _loads(self, request: Request) -> Response:
        scheduler, sizes = self._scheduler, self._scheduler.sizes
        active = sum(len(s.context.weights) for s in scheduler.running if s.context is not None)
        load = {
            "dp_rank": 0,
            "timestamp": time.time(),
            "num_running_reqs": len(scheduler.running),
            "num_waiting_reqs": len(scheduler.waiting),
            "num_waiting_uncached_tokens": sum(len(s.ask.ids) for s in scheduler.waiting),
            "num_used_tokens": active,
            "num_total_tokens": active + sum(len(s.ask.ids) for s in scheduler.waiting),
            "num_active_tokens": active,
            "max_total_num_tokens": sizes.tokens,
            "max_running_requests": sizes.running,
            "token_usage": active / sizes.tokens,
            "gen_throughput": 0.0,
            "cache_hit_rate": 0.0,
            "utilization": len(scheduler.running) / sizes.running,
        }
        told = {"timestamp": time.time(), "version": VERSION, "accelerator": "cpu", "num_accelerators": 1}
        return JSONResponse({**told, "loads": [load]})

    async def _health(self, request: Request) -> Response:
        return Response(status_code=200 if await self._frontend.is_well() else 503)

    async def _set_faults(self, request: Request) -> Response:
        """This route is the fake's own: a test that runs it as a process sets its faults here."""
        for name, value in (await _object(request)).items():
            if name not in {one.name for one in fields(Faults)}:
                raise SchemaError(f"{name} is no fault")
            setattr(self._faults, name, value)
        return JSONResponse(asdict(self._faults))


async def _body(request: Request) -> Any:
    try:
        return json.loads(await request.body())
    except ValueError:
        raise SchemaError("the body is missing or no JSON") from None


async def _object(request: Request) -> dict[str, Any]:
    body = await _body(request)
    if not isinstance(body, dict):
        raise SchemaError("the body is no JSON object")
    return body


def _required(body: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    if missing := [name for name in names if name not in body]:
        raise SchemaError(f"{missing[0]}: field required")
    return body


async def _after(reading: list[asyncio.Task[None]], came: asyncio.Queue[Any]) -> None:
    await asyncio.wait(reading)
    came.put_nowait(None)


async def _refused(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": {"message": str(error)}}, getattr(error, "status", 400))


async def _malformed(request: Request, error: Exception) -> Response:
    return JSONResponse(
        {"object": "error", "message": str(error), "type": "Bad Request", "param": None, "code": 400}, 400
    )


def _event(answer: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(answer).encode() + b"\n\n"
