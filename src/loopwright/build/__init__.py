"""The composition root: config in, ready objects out. The only room that sees the whole config."""

from loopwright.build.chat import ChatModel, open_chat, run_renderer
from loopwright.build.evaluate import evaluate_weights
from loopwright.build.gateway import serve_gateway
from loopwright.build.recipe import rehearse_learner
from loopwright.build.remote import RemoteEngine
from loopwright.build.replay import replay_step
from loopwright.build.roll_out import Made, roll_out
from loopwright.build.run import open_run
from loopwright.build.running import Run, RunOpening
from loopwright.build.serving import ServedModel, serve_engine

__all__ = [
    "ChatModel",
    "Made",
    "RemoteEngine",
    "Run",
    "RunOpening",
    "ServedModel",
    "evaluate_weights",
    "open_chat",
    "open_run",
    "rehearse_learner",
    "replay_step",
    "roll_out",
    "run_renderer",
    "serve_engine",
    "serve_gateway",
]
