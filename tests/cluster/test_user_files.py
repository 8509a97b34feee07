"""The user's files reach every node, or are refused by name. A node that sees the same folder copies nothing."""

from __future__ import annotations

import fcntl
import io
import os
import signal
import time
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from judger_contract import TASK, Configs, said, until
from judgers_on_actors import opened_judgers, placed

from loopwright.build.user_files import named_files
from loopwright.cluster.judger import RayJudger
from loopwright.config import LlmJudgerConfig, NativeJudgerConfig
from loopwright.config.base import needs_of
from loopwright.errors import ConfigError
from loopwright.testing import JudgeServer, chat_reply, score_one

if TYPE_CHECKING:
    from loopwright.cluster.cluster import Cluster

pytestmark = pytest.mark.real

JUDGER = """
from pathlib import Path
from grading.letters import VOWELS
from sibling import HALF
from loopwright import Scored

def judge(task, episode):
    value = sum(letter in VOWELS for letter in episode.answer) * HALF
    return Scored(value, answer=str(Path(__file__).parent))
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A user's folder: a judger that imports its siblings, and much that is not for actors."""
    base = tmp_path / "user"
    files = {
        "judger.py": JUDGER,
        "sibling.py": "HALF = 0.5\n",
        "grading/__init__.py": "",
        "grading/letters.py": 'VOWELS = "aeiou"\n',
        "prompts/judge.txt": "Is {answer} good?",
        "notes.txt": "not for actors",
        ".hidden/secret.py": "",
        "env/pyvenv.cfg": "",
        "env/lib/large.py": "",
        "node_modules/x.py": "",
        "runs/one/config.yaml": "",
        "runs/one/id": "",
        "runs/one/lock": "",
        "runs/one/workspace/left.py": "",
    }
    for name, text in files.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(text)
    return base


def hide(base: Path) -> None:
    """What another machine sees: nothing."""
    base.rename(base.with_name("elsewhere"))


def empty_zip() -> bytes:
    packed = io.BytesIO()
    zipfile.ZipFile(packed, "w").close()
    return packed.getvalue()


NATIVE = NativeJudgerConfig(path="judger.py:judge", timeout_seconds=60.0)


@asynccontextmanager
async def opened_part(base: Path) -> AsyncIterator[Path]:
    """A part that is the folder of its files."""
    yield base


async def files_there(cluster: Cluster, base: Path, named: tuple[str, ...] = ()) -> list[str]:
    """What a node that has nothing gets."""
    from loopwright.cluster.files import files_here, user_files

    files = await user_files(base, named)
    hide(base)
    async with files_here(files) as folder:
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


async def test_all_python_and_what_is_named_is_copied_and_nothing_else(cluster: Cluster, base: Path) -> None:
    got = await files_there(cluster, base, ("prompts/judge.txt",))
    assert got == ["grading/__init__.py", "grading/letters.py", "judger.py", "prompts/judge.txt", "sibling.py"]


async def test_on_the_same_machine_nothing_is_copied(cluster: Cluster, base: Path) -> None:
    async with opened_judgers(cluster, ["mine"], {"mine": placed(NATIVE)}, base) as judgers:
        scored = await score_one(judgers["mine"], TASK, said("aab"))
    assert (scored.value, scored.answer) == (1.0, str(base))


async def test_a_folder_with_the_same_files_is_used_where_it_is(cluster: Cluster, base: Path) -> None:
    """As on a disk that is shared: another folder of the same path."""
    import shutil

    from loopwright.cluster.files import files_here, user_files

    files = await user_files(base)
    hide(base)
    shutil.copytree(base.with_name("elsewhere"), base)
    async with files_here(files) as folder:
        assert folder == base
    (base / "sibling.py").write_text("HALF = 0.25\n")
    async with files_here(files) as folder:
        assert folder != base, "one file differs"
        assert (folder / "sibling.py").read_text() == "HALF = 0.5\n"
    assert not folder.exists()


@pytest.fixture
def hidden(cluster: Cluster, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The actors do not see the folder: it goes away as soon as the driver has read it."""
    from loopwright.cluster import files as module

    read = module.user_files

    async def then_hide(*args: Any) -> module.UserFiles:
        files = await read(*args)
        hide(base)
        return files

    monkeypatch.setattr(module, "user_files", then_hide)


@pytest.mark.usefixtures("hidden")
async def test_an_actor_elsewhere_imports_its_siblings_from_a_copy(cluster: Cluster, base: Path) -> None:
    async with opened_judgers(cluster, ["mine"], {"mine": placed(NATIVE)}, base) as judgers:
        scored = await score_one(judgers["mine"], TASK, said("aab"))
        assert scored.value == 1.0
        assert scored.answer is not None
        assert os.path.basename(scored.answer).startswith("loopwright-files-")
        assert os.path.exists(scored.answer)  # noqa: ASYNC240
    await until(lambda: not os.path.exists(str(scored.answer)))


@pytest.mark.usefixtures("hidden")
async def test_a_prompt_file_travels(cluster: Cluster, base: Path) -> None:
    with JudgeServer([chat_reply('{"score": 1}')]) as server:
        config = LlmJudgerConfig(base_url=server.url, model="m", prompt_file="prompts/judge.txt")
        async with opened_judgers(cluster, ["prefers"], {"prefers": placed(config)}, base) as judgers:
            assert (await score_one(judgers["prefers"], TASK, said("seven"))).value == 1.0
    asked = str(server.requests[0].body)
    assert "'Is -----" in asked
    assert "----- good?'" in asked


async def test_a_file_that_no_node_can_get_is_refused_by_name(cluster: Cluster, base: Path, tmp_path: Path) -> None:
    from loopwright.cluster.files import files_here, user_files

    with pytest.raises(ConfigError, match=r"there is no file .*user/gone\.py, which the config names"):
        await user_files(base, ["gone.py"])
    shared = tmp_path / "shared.py"
    shared.write_text("")
    beside, absolute = await user_files(base, ["../shared.py"]), await user_files(base, [str(shared)])
    for files in (beside, absolute):
        async with files_here(files) as folder:
            assert folder == base, "this machine has it"
    hide(base)
    async with files_here(absolute) as folder:
        assert folder != base, "the node has it, at the same place"
    with pytest.raises(ConfigError, match=r"^\.\./shared\.py is not on node .* as the driver has it"):
        async with files_here(beside):
            raise AssertionError("a copy has nothing beside it")
    shared.write_text("other")
    with pytest.raises(ConfigError, match=r"/shared\.py is not on node .* as the driver has it"):
        async with files_here(absolute):
            raise AssertionError("it is another file")


async def test_files_that_are_too_large_are_refused_with_the_largest_ones_named_where_they_are_needed(
    cluster: Cluster, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loopwright.cluster import files as module

    monkeypatch.setattr(module, "MAX_BYTES", 2**20)
    (base / "table.py").write_text("x" * 2**21)
    (base / "smaller.py").write_text("x" * 2**19)
    files = await module.user_files(base)
    async with module.files_here(files) as folder:
        assert folder == base
    hide(base)
    with pytest.raises(
        ConfigError, match=r"larger than 1 MiB in all; the largest are table\.py \(2\.0 MiB\), smaller\.py \(0\.5 MiB\)"
    ):
        async with module.files_here(files):
            raise AssertionError("it is refused")
    monkeypatch.setattr(module, "MAX_SEEN", 3)
    files = await module.user_files(base.with_name("elsewhere"))
    assert files.refusal == "there are more than 3 files below it"


async def test_a_copy_of_a_killed_actor_is_removed_by_the_next_one(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loopwright.cluster import file_copy as module

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, held, fresh = (tmp_path / f"{module.COPY}{name}" for name in ("left", "held", "fresh"))
    for folder in (left, held, fresh):
        folder.mkdir()
        (folder / "judger.py").touch()
    for folder in (left, held):
        os.utime(folder, (0, time.time() - 2 * module.FRESH_SECONDS))
    handle = os.open(held, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with module.copied(empty_zip(), tmp_path / "user") as own:
            assert set(os.listdir(tmp_path)) == {own.name, held.name, fresh.name}
    finally:
        os.close(handle)


async def test_after_an_edit_the_files_are_those_of_the_runs_start(
    cluster: Cluster, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also on the driver's own machine. Data that no config names is found as before."""
    from loopwright.cluster.files import files_here, user_files

    (base / "grading" / "table.txt").write_text("data")
    files = await user_files(base)
    (base / "grading" / "letters.py").write_text("VOWELS = 1 / 0\n")
    (base / "sibling.py").unlink()
    (base / "new.py").write_text("")
    async with files_here(files) as folder:
        assert folder != base
        assert (folder / "grading" / "letters.py").read_text() == 'VOWELS = "aeiou"\n'
        assert (folder / "sibling.py").read_text() == "HALF = 0.5\n"
        assert (folder / "grading" / "table.txt").read_text() == "data"
        assert (folder / "notes.txt").read_text() == "not for actors"
        assert not (folder / "new.py").exists()
    assert (base / "notes.txt").exists(), "a copy goes without what is linked"
    assert "sibling.py, grading/letters.py: edited after the run started" in caplog.text


async def test_after_an_edit_of_files_that_cannot_be_copied_an_actor_is_refused(
    cluster: Cluster, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loopwright.cluster import files as module

    shared = tmp_path / "shared.py"
    shared.write_text("")
    absolute, beside = await module.user_files(base, [str(shared)]), await module.user_files(base, ["../shared.py"])
    monkeypatch.setattr(module, "MAX_BYTES", 1)
    large = await module.user_files(base)
    (base / "sibling.py").write_text("")
    for files, words in (
        (beside, r"sibling\.py is not as it was when the run started, and only .* are copied, not \.\./shared\.py"),
        (large, r"sibling\.py is not as it was when the run started, and .* cannot be copied: they are larger than"),
    ):
        with pytest.raises(ConfigError, match=words):
            async with module.files_here(files):
                raise AssertionError("it is refused")
    async with module.files_here(absolute) as folder:
        assert folder != base
    shared.write_text("edited")
    with pytest.raises(ConfigError, match=r"/shared\.py is not as it was when the run started"):
        async with module.files_here(absolute):
            raise AssertionError("it is refused")


async def test_an_actor_that_is_started_again_judges_as_before_an_edit(cluster: Cluster, base: Path) -> None:
    async with opened_judgers(cluster, ["mine"], {"mine": placed(NATIVE)}, base) as judgers:
        judger = judgers["mine"]
        assert isinstance(judger, RayJudger)
        first = await score_one(judger, TASK, said("aab"))
        (base / "sibling.py").write_text("HALF = 100\n")
        host: Any = judger.crew.running[0].host
        os.kill(host.started.pid, signal.SIGKILL)
        await until(lambda: not judger.crew.running)
        again = await score_one(judger, TASK, said("aab"))
    assert (first.value, first.answer) == (1.0, str(base))
    assert again.value == 1.0
    assert again.answer != str(base)


async def test_an_object_is_read_after_its_modules_are_there(cluster: Cluster, base: Path) -> None:
    """An instance of a class in the user's folder: the actor can import the class only with the files."""
    import sys

    from loopwright.cluster.files import _open_with_files, hosted, user_files

    (base / "graders.py").write_text("class Grader:\n    async def judge(self, task, episode): return 1.0\n")
    sys.path.append(str(base))
    try:
        import graders  # type: ignore[import-not-found]

        given = graders.Grader()
        configs: Configs = {"fair": placed(NativeJudgerConfig(path="object:fair"))}
        async with opened_judgers(cluster, ["fair"], configs, base, None, {"object:fair": given}) as judgers:
            assert (await score_one(judgers["fair"], TASK, said(""))).value == 1.0
        opening = hosted(partial(_with, given), await user_files(base), "judger 'fair'")
    finally:
        sys.path.remove(str(base))
        del sys.modules["graders"]
    hide(base)
    (base.with_name("elsewhere") / "graders.py").unlink()
    assert isinstance(opening, partial)
    assert opening.func is _open_with_files
    _, files, what = opening.args
    broken = opening.args[0].replace(b"graders", b"gradexs")
    with pytest.raises(ConfigError, match=r"judger 'fair' cannot be read on an actor: .*No module named 'gradexs'"):
        async with _open_with_files(broken, files, what):
            raise AssertionError("it is refused")


@asynccontextmanager
async def _with(given: object, base: Path) -> AsyncIterator[object]:
    yield given


def test_the_files_of_a_config_are_those_that_it_names(tmp_path: Path) -> None:
    llm = LlmJudgerConfig(base_url="http://x", model="m", prompt_file="judge.txt")
    module, given = NativeJudgerConfig(path="package.module:judge"), NativeJudgerConfig(path="object:main.judge")
    needs = [need for config in (NATIVE, llm, module, given) for need in needs_of(config)]
    assert named_files(needs, tmp_path) == ["judger.py", "judge.txt"]


def test_names_that_are_no_text_and_files_that_vanish_stop_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loopwright.cluster import files

    (tmp_path / "judger.py").touch()
    (tmp_path / "gone.py").touch()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.py")).touch()
    digest = files._digest

    def vanishing(file: Path) -> str:
        if file.name == "gone.py":
            raise FileNotFoundError(file)
        return digest(file)

    monkeypatch.setattr(files, "_digest", vanishing)
    read = files._read(tmp_path, ["judger.py"])
    assert list(read.digests) == ["judger.py"]
    with zipfile.ZipFile(io.BytesIO(read.packed)) as archive:
        assert archive.namelist() == ["judger.py"]


def test_a_linked_package_travels_and_other_links_do_not(tmp_path: Path) -> None:
    from loopwright.cluster.files import _read

    base, package, data = tmp_path / "base", tmp_path / "shared", tmp_path / "data"
    for folder in (base, package, data):
        folder.mkdir()
    (package / "__init__.py").touch()
    (package / "back").symlink_to(package)
    (data / "large.py").touch()
    (base / "grading").symlink_to(package)
    (base / "data").symlink_to(data)
    (base / "up").symlink_to(base)
    assert list(_read(base, []).digests) == ["grading/__init__.py"]
