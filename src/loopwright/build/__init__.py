"""The composition root: config in, ready objects out. The only room that sees the whole config.

Its names are imported on first use, because the deep check lives here too and must not load torch.
"""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    from loopwright.build.chat import ChatModel, open_chat, run_renderer
    from loopwright.build.evaluate import evaluate_weights
    from loopwright.build.export import ExportKind, export_model
    from loopwright.build.gateway import ForRuns, serve_gateway
    from loopwright.build.plain_rollouts import Made, roll_out
    from loopwright.build.rank import open_rank
    from loopwright.build.rehearsal import rehearse
    from loopwright.build.rejudge import rejudge_run
    from loopwright.build.relay import Relayed, WorkerPlace, serve_worker
    from loopwright.build.remote import RemoteEngine
    from loopwright.build.replay import replay_step
    from loopwright.build.run import open_run
    from loopwright.build.running import Run, RunOpening
    from loopwright.build.serving import ServedModel, end_process, serve_engine

__all__ = [
    "ChatModel",
    "ExportKind",
    "ForRuns",
    "Made",
    "Relayed",
    "RemoteEngine",
    "Run",
    "RunOpening",
    "ServedModel",
    "WorkerPlace",
    "end_process",
    "evaluate_weights",
    "export_model",
    "open_chat",
    "open_rank",
    "open_run",
    "rehearse",
    "rejudge_run",
    "replay_step",
    "roll_out",
    "run_renderer",
    "serve_engine",
    "serve_gateway",
    "serve_worker",
]

_MODULES = {
    "chat": ("ChatModel", "open_chat", "run_renderer"),
    "evaluate": ("evaluate_weights",),
    "export": ("ExportKind", "export_model"),
    "gateway": ("ForRuns", "serve_gateway"),
    "plain_rollouts": ("Made", "roll_out"),
    "rank": ("open_rank",),
    "rehearsal": ("rehearse",),
    "relay": ("Relayed", "WorkerPlace", "serve_worker"),
    "rejudge": ("rejudge_run",),
    "remote": ("RemoteEngine",),
    "replay": ("replay_step",),
    "run": ("open_run",),
    "running": ("Run", "RunOpening"),
    "serving": ("ServedModel", "end_process", "serve_engine"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> typing.Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
