"""`loopwright engine`: what it refuses before it loads anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loopwright.build import ServedModel
from loopwright.cli import main
from loopwright.cli.engine import _key
from loopwright.engines.http.process import KEY_VARIABLE, engine_command


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(["engine", "--model", "no-such-model", *arguments])
    assert left.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("key", [None, "", "two words"])
def test_a_wider_bind_needs_a_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    if key is None:
        monkeypatch.delenv(KEY_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(KEY_VARIABLE, key)
    said = refused(capsys, "--host", "0.0.0.0")
    assert "has no key" in said if key is None else "holds no usable key" in said


def test_the_key_is_taken_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "from-the-environment")
    assert _key(None) == "from-the-environment"
    assert KEY_VARIABLE not in os.environ, "programs that it starts would see it"


def test_a_key_file_must_be_private(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("secret")
    file.chmod(0o644)
    said = refused(capsys, "--key-file", str(file))
    assert "open to other users" in said
    assert "secret" not in said


def test_a_missing_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "loopwright[serve]" in refused(capsys)


@pytest.mark.parametrize("native", [True, False])
def test_a_run_that_wants_no_native_steps_tells_its_engine(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    served = []

    async def serve(model: ServedModel, *others: object) -> None:
        served.append(model)

    monkeypatch.setattr("loopwright.cli.engine._serve", serve)
    monkeypatch.setattr("loopwright.cli.engine.die_with_parent", lambda: None)
    command = engine_command("no-such-model", max_batch=1, native=native)
    with pytest.raises(SystemExit) as left:
        main(command[command.index("engine") :])
    assert (left.value.code, [model.native for model in served]) == (0, [native])
