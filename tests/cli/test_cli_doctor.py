"""The doctor on this very machine, and what it says of others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from loopwright.cli import main
from loopwright.cluster import probe
from loopwright.cluster.probe import FoundCluster, FoundNode
from loopwright.doctor import probes, torch_probe
from loopwright.models.native.library import Unavailable
from loopwright.weights import folder


@pytest.fixture
def run(capfd, monkeypatch, tmp_path):
    """Run the doctor with a cache of its own; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(probes, "busy_share", lambda: 0.4)

    def run_it(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(["doctor", *arguments])
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return run_it


def program(monkeypatch, text: str) -> None:
    """Let the child process run this in torch's stead."""
    monkeypatch.setattr(torch_probe, "PROGRAM", text)


FOUND = 'print(\'{"version": "9.9", "threads": 1, "gpus": []}\', flush=True)\n'


@pytest.mark.real
def test_a_real_run_finds_torch_and_this_folder(run, tmp_path):
    code, out, _ = run("--json")
    report = json.loads(out)
    facts = report["facts"]
    assert code == 0
    assert facts["python"].split(".")[:2] == [str(part) for part in sys.version_info[:2]]
    assert facts["torch"]["version"]
    assert facts["torch"]["error"] is None
    assert facts["torch"]["bf16"] in ("works", "killed", "killed unless capped")
    assert facts["disks"][0]["folder"] == str(tmp_path)
    assert facts["memory"]["machine"] > 0
    assert {extra["name"] for extra in facts["extras"]} >= {"torch", "math", "http"}


def test_a_cluster_is_shown_with_its_nodes(run, monkeypatch):
    program(monkeypatch, FOUND)
    node = FoundNode("n1", "10.0.0.7", {"CPU": 8.0, "memory": 3.0 * (1 << 30)}, {"zone": "a"})
    found = FoundCluster("10.0.0.7:6379", "2.60.0", (node,))
    monkeypatch.setattr(probe, "examine_cluster", lambda address: found)
    code, out, _ = run("--cluster", "auto")
    assert code == 0
    assert "10.0.0.7:6379, Ray 2.60.0, 1 nodes" in out
    assert "10.0.0.7: 8 CPUs, 0 GPUs, 3.0 GiB memory" in out
    assert json.loads(run("--cluster", "auto", "--json")[1])["cluster"]["nodes"][0]["labels"] == {"zone": "a"}


def test_a_cluster_that_cannot_be_joined_is_broken(run, monkeypatch):
    program(monkeypatch, FOUND)
    code, out, _ = run("--cluster", "127.0.0.1:1")
    assert code == 1
    assert "broken: no Ray cluster can be joined at 127.0.0.1:1: [Errno 111] Connection refused" in out
    assert "cores" in out


def test_a_process_killed_by_bfloat16_is_seen_from_outside(run, monkeypatch):
    program(monkeypatch, FOUND + "import os, signal\nos.kill(os.getpid(), signal.SIGILL)")
    code, out, _ = run()
    assert code == 0
    assert "bfloat16 kills the process (SIGILL)" in out
    assert "leave model.dtype at float32\n" in out


def test_the_cap_is_recommended_only_where_it_was_seen_to_help(run, monkeypatch):
    capped = (
        "import os, signal\n"
        "if 'ONEDNN_MAX_CPU_ISA' not in os.environ: os.kill(os.getpid(), signal.SIGILL)\n"
        "print('{\"product\": 576.0}')"
    )
    program(monkeypatch, FOUND + capped)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    _, out, _ = run()
    assert "or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in out


def test_a_torch_that_cannot_be_imported_is_broken(run, monkeypatch):
    program(monkeypatch, "raise ImportError('libgomp.so.1: cannot open shared object file')")
    code, out, _ = run()
    assert code == 1
    assert "broken: torch is installed but cannot be imported: ImportError: libgomp.so.1" in out
    assert "cores" in out, "the other probes are shown nevertheless"


def test_a_torch_that_hangs_does_not_hang_the_doctor(monkeypatch):
    program(monkeypatch, "import time\ntime.sleep(600)")
    found = torch_probe.probe_torch({}, seconds=0.5)
    assert found.error == "no answer within 0.5 s"


@pytest.mark.real
def test_what_was_printed_before_a_hang_is_kept(monkeypatch):
    program(monkeypatch, FOUND + "import time\ntime.sleep(600)")
    found = torch_probe.probe_torch({}, seconds=2)
    assert (found.version, found.bf16, found.error) == ("9.9", "unknown", None)


def test_models_in_the_cache_are_listed(run, monkeypatch, tmp_path):
    program(monkeypatch, FOUND)
    model = tmp_path / "cache" / "loopwright" / "models" / "mine"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    assert "mine (0.0 GiB)" in run()[1]


def test_weights_of_killed_runs_are_listed(run, monkeypatch):
    program(monkeypatch, FOUND)
    monkeypatch.setattr(folder, "left_behind", lambda: {Path("/dev/shm/loopwright-0-ab"): 540 << 20})
    assert "-> remove them: rm -r /dev/shm/loopwright-0-ab;" in run()[1]
    assert json.loads(run("--json")[1])["facts"]["left_behind"] == {"/dev/shm/loopwright-0-ab": 540 << 20}


def test_doctor_loads_nothing_heavy(run, monkeypatch):
    program(monkeypatch, FOUND)
    before = set(sys.modules)
    run()
    assert not {"torch", "transformers", "pyarrow"} & (set(sys.modules) - before)


def test_it_says_how_the_engine_decodes_and_why(run, monkeypatch):
    program(monkeypatch, FOUND)
    assert "decoding        by native steps" in run()[1]
    monkeypatch.setattr(probes, "library", lambda folder: Unavailable("no C compiler (gcc or cc) was found"))
    out = run()[1]
    assert "decoding        by torch" in out
    assert "no C compiler (gcc or cc) was found" in out
    assert "-> install gcc" in out
