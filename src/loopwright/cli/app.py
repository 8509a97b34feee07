"""All commands of `loopwright`. Each lives in a module of its own and imports what is heavy only when it runs."""

from __future__ import annotations

import typer

from loopwright.cli.agent_server import agent_server
from loopwright.cli.audit import audit
from loopwright.cli.bench import bench
from loopwright.cli.chat import chat
from loopwright.cli.check import check
from loopwright.cli.cluster import cluster
from loopwright.cli.config_command import config
from loopwright.cli.data import data
from loopwright.cli.doctor import doctor
from loopwright.cli.drift import drift
from loopwright.cli.engine import engine
from loopwright.cli.eval import evaluate
from loopwright.cli.export import export
from loopwright.cli.gateway import gateway
from loopwright.cli.learner_rank import learner_rank
from loopwright.cli.migrate import migrate
from loopwright.cli.rejudge import rejudge
from loopwright.cli.replay import replay
from loopwright.cli.rollout import rollout
from loopwright.cli.show import show
from loopwright.cli.status import status
from loopwright.cli.train import train
from loopwright.cli.ui import ui
from loopwright.cli.vllm_extension import vllm_extension
from loopwright.cli.worker import worker

app = typer.Typer(
    name="loopwright",
    help="Reinforcement learning for the LLM agent you already have.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("train")(train)
app.command("eval")(evaluate)
app.command("rollout")(rollout)
app.command("check")(check)
app.command("config")(config)
app.command("migrate")(migrate)
app.command("doctor")(doctor)
app.command("status")(status)
app.command("show")(show)
app.command("export")(export)
app.command("ui")(ui)
app.command("audit")(audit)
app.command("replay")(replay)
app.command("rejudge")(rejudge)
app.command("drift")(drift)
app.command("chat")(chat)
app.command("engine")(engine)
app.command("gateway")(gateway)
app.command("learner-rank", hidden=True)(learner_rank)
app.command("worker")(worker)
app.command("agent-server")(agent_server)
app.command("vllm-extension")(vllm_extension)
app.command("bench")(bench)
app.add_typer(cluster, name="cluster")
app.add_typer(data, name="data")
