"""The composition root: config in, ready objects out. The only room that sees the whole config."""

from loopwright.build.chat import ChatModel, open_chat, run_renderer
from loopwright.build.run import Run, open_run

__all__ = ["ChatModel", "Run", "open_chat", "open_run", "run_renderer"]
