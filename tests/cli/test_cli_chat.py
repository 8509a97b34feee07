"""`loopwright chat` with a partner that says what it heard."""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from loopwright.cli import main
from loopwright.errors import RunError
from loopwright.ports import Reply
from loopwright.types import FinishReason


class Echo:
    """Repeats the last message and says how many it got."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, float, int]] = []

    async def reply(self, messages, *, temperature, max_new_tokens) -> Reply:
        self.calls.append((len(messages), temperature, max_new_tokens))
        finish = FinishReason.LENGTH if "long" in messages[-1]["content"] else FinishReason.STOP
        return Reply(f"{len(messages)}: {messages[-1]['content']}", finish)


@pytest.fixture
def echo(monkeypatch, made_up_run) -> Echo:
    partner = Echo()

    @asynccontextmanager
    async def open_chat(folder, *, cache):
        assert folder == made_up_run
        yield partner

    monkeypatch.setitem(sys.modules, "loopwright.build", SimpleNamespace(open_chat=open_chat))
    return partner


@pytest.fixture
def chat(capfd, monkeypatch, made_up_run):
    """Type `lines` into `chat`; gives exit code, stdout and stderr."""

    def run_it(*arguments: str, lines: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        with pytest.raises(SystemExit) as caught:
            main(["chat", str(made_up_run.path), *arguments])
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return run_it


def test_once_prints_the_reply_and_nothing_else(chat, echo):
    code, out, err = chat("--once", "2+2?", "--temperature", "0", "--max-new-tokens", "9")
    assert (code, out, err) == (0, "1: 2+2?\n", "")
    assert echo.calls == [(1, 0.0, 9)]


def test_the_conversation_is_remembered_until_it_is_reset(chat, echo):
    code, out, err = chat(lines="hello\n\nagain\n/reset\nnew\n/quit\nunheard\n")
    assert code == 0
    assert out.split("\n") == ["1: hello", "3: again", "1: new", ""]
    assert "forgotten" in err
    assert echo.calls[0] == (1, 0.7, 256)


def test_it_ends_with_its_input_and_tells_of_cut_replies_and_unknown_commands(chat, echo):
    code, out, err = chat(lines="a long story\n/help\n")
    assert (code, out) == (0, "1: a long story\n")
    assert "--max-new-tokens" in err
    assert "no command /help; there are /reset and /quit" in err


def test_ctrl_c_at_the_prompt_leaves(chat, echo, monkeypatch):
    def person(prompt: str) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "not reached\n"

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys.modules["builtins"], "input", person)
    code, out, _ = chat()
    assert (code, out) == (0, "")
    assert echo.calls == []
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_without_weights_is_an_error_with_a_remedy(chat, monkeypatch):
    @asynccontextmanager
    async def open_chat(folder, *, cache):
        if folder is not None:
            raise RunError("it has no weights yet", remedy="wait for its first checkpoint")
        yield

    monkeypatch.setitem(sys.modules, "loopwright.build", SimpleNamespace(open_chat=open_chat))
    code, out, err = chat("--once", "hello")
    assert (code, out) == (1, "")
    assert "error: it has no weights yet" in err
    assert "-> wait for its first checkpoint" in err


def test_what_the_model_says_cannot_control_the_terminal(chat, echo):
    assert chat("--once", "\x1b[2Jboo")[1] == "1: ␛[2Jboo\n"
