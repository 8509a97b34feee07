"""What a config names on disk is looked at before anything starts, and nothing is imported for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopwright.config import model_folder

TASK = '{"prompt": "2+2?", "truth": 4}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.jsonl").write_text(TASK)
    (tmp_path / "mine.py").write_text("import math as m\nLIMIT = 3\nasync def judge(task, episode): return 1.0\n")
    return tmp_path


def only(problems):
    (problem,) = problems
    return problem


def test_a_sound_config_passes(folder, load_text, minimal):
    load_text(minimal, "judgers.j={kind: native, path: 'mine.py:judge'}", "agent.judger=j", files=True)


def test_without_files_nothing_on_disk_is_looked_at(load_text, minimal):
    load_text(minimal, "model.path=./nowhere")


def test_a_typo_in_a_data_path_suggests_the_file(folder, problems_of, minimal):
    problem = only(problems_of(minimal, "data.path=taks.jsonl", files=True))
    assert problem.startswith("data.path: there is no file")
    assert problem.endswith("did you mean 'tasks.jsonl'?")


def test_a_missing_folder_is_named(folder, problems_of, minimal):
    assert "there is no folder" in only(problems_of(minimal, "data.path=nowhere/tasks.jsonl", files=True))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("mnie.py:judge", "did you mean 'mine.py'?"),
        ("mine.py:jugde", "mine.py has no 'jugde' (command line) -> did you mean 'judge'?"),
        ("mine.py:zzz", "names in mine.py: LIMIT, judge, m"),
        ("mine.py", "does not name a Python object"),
        ("no_such_package.module:judge", "there is no module 'no_such_package'"),
    ],
)
def test_a_python_path_that_leads_nowhere(folder, problems_of, minimal, path, words):
    judger = f"judgers.j={{kind: native, path: '{path}'}}"
    assert words in only(problems_of(minimal, judger, "agent.judger=j", files=True))


def test_sources_and_agents_are_looked_at_too(folder, problems_of, minimal):
    problems = problems_of(
        minimal,
        "data={kind: python, path: 'mine.py:tasks'}",
        "agent={kind: python, path: 'mine.py:Loop', judger: integer_answer}",
        files=True,
    )
    assert [problem.split(":")[0] for problem in problems] == ["data.path", "agent.path"]


def test_invalid_python_is_named(folder, problems_of, minimal):
    (folder / "broken.py").write_text("def judge(:\n")
    judger = "judgers.j={kind: native, path: 'broken.py:judge'}"
    problem = only(problems_of(minimal, judger, "agent.judger=j", files=True))
    assert "broken.py is not valid Python" in problem
    assert "line 1" in problem


def test_looking_imports_nothing(folder, load_text, minimal):
    (folder / "loud.py").write_text("raise SystemExit('imported')\ndef judge(task, episode): return 1.0\n")
    load_text(minimal, "judgers.j={kind: native, path: 'loud.py:judge'}", "agent.judger=j", files=True)


def test_a_model_folder_needs_a_config_and_a_tokenizer(folder, problems_of, load_text, minimal):
    model = folder / "my-model"
    assert "there is no folder" in only(problems_of(minimal, "model.path=./my-model", files=True))
    model.mkdir()
    assert "has no config.json" in only(problems_of(minimal, "model.path=my-model", files=True))
    (model / "config.json").write_text("{}")
    assert "model folder without a tokenizer" in only(problems_of(minimal, "model.path=my-model", files=True))
    assert "did you mean 'my-model'?" in only(problems_of(minimal, "model.path=./my-modle", files=True))
    (model / "tokenizer.json").write_text("{}")
    load_text(minimal, "model.path=my-model", files=True)


@pytest.mark.parametrize(
    ("wanting", "who"),
    [
        (["rollout.engine={kind: vllm, executable: /bin/sh}"], "vLLM loads"),
        (["learner.ranks=2", "rollout.engine.num_engines=1"], "ranks load"),
    ],
)
def test_an_adapter_is_no_model_for_what_loads_whole_models(folder, problems_of, load_text, minimal, wanting, who):
    model = folder / "adapter"
    model.mkdir()
    # Some tools save the base's config beside an adapter. It is no model without weights.
    for name in ("adapter_config.json", "config.json"):
        (model / name).write_text("{}")
    (problem,) = problems_of(minimal, "model.path=adapter", *wanting, files=True)
    assert problem.startswith(f"model.path: adapter is an adapter, and {who} whole models")
    assert "loopwright export RUN --merged --out DIR" in problem
    for engine in ("rollout.engine={kind: vllm, urls: ['http://127.0.0.1:1']}", "rollout.engine.num_engines=1"):
        load_text(minimal, "model.path=adapter", engine, files=True)
    (model / "model.safetensors").write_bytes(b"")
    assert "holds a model and an adapter" in only(problems_of(minimal, "model.path=adapter", files=True))
    (model / "adapter_config.json").unlink()
    (model / "tokenizer.json").write_text("{}")
    load_text(minimal, "model.path=adapter", *wanting, files=True)


@pytest.mark.parametrize("name", ["smollm2", "gpt2", "Qwen/Qwen3-0.6B"])
def test_names_are_not_taken_for_folders(tmp_path, name):
    assert model_folder(name, tmp_path) is None


def test_a_near_miss_of_the_bundled_model_is_a_warning(folder, load_text, minimal):
    (warning,) = load_text(minimal, "model.path=smolm2", files=True).warnings
    assert "did you mean 'smollm2'?" in warning


def test_run_dir_must_be_a_place_to_write(folder, problems_of, minimal):
    run_dir = folder / "tasks.jsonl" / "run"
    assert "is not a folder" in only(problems_of(minimal, f"trainer.run_dir={run_dir}", files=True))
