"""What facts mean, on machines that are not here."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from loopwright.doctor import Facts, Severity, advise
from loopwright.doctor.facts import Bf16, Cores, Disk, FolderPurpose, InstalledExtra, Memory, Torch
from loopwright.doctor.packages import EXTRAS

GIB = 1 << 30
FINE = Facts(
    python="3.11.0",
    loopwright="0.1.0",
    extras=(InstalledExtra("math", "the judger math_answer", {"math-verify": "0.9"}),),
    cores=Cores(8, 8, None),
    memory=Memory(16 * GIB, 8 * GIB, None),
    disks=(Disk(FolderPurpose.RUNS, "/runs", "/", 100 * GIB, "ext4", True),),
    models={},
    torch=Torch(version="2.13", threads=8, bf16=Bf16.WORKS),
)
RUNS = FINE.disks[0]
MODELS = replace(RUNS, purpose=FolderPurpose.MODELS, folder="/cache")


def test_a_good_machine_gets_no_advice():
    assert advise(FINE) == []
    assert advise(replace(FINE, torch=None)) == []


@pytest.mark.parametrize(
    ("changes", "text", "remedy"),
    [
        ({"torch": Torch(bf16=Bf16.KILLED)}, "bfloat16 kills the process", "float32"),
        ({"torch": Torch(bf16=Bf16.KILLED_UNLESS_CAPPED)}, "AMX", "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"),
        (
            {"torch": Torch(gpus=("H100", "H100"))},
            "H100, H100: training and the embedded engine compute there",
            "--gpu",
        ),
        ({"gpus": 1}, "this machine has a GPU, and torch 2.13 cannot use it", "a build of torch for GPUs"),
        ({"cores": Cores(64, 64, 2.0)}, "8 threads on 2 usable cores", "model.threads: 2"),
        ({"cores": Cores(64, 4, None)}, "8 threads on 4 usable cores", "model.threads: 4"),
        ({"cores": Cores(64, 64, 0.5)}, "8 threads on 0.5 usable cores", "model.threads: 1"),
        ({"cores": Cores(2, 2, None), "omp_threads": "8"}, "OMP_NUM_THREADS is 8", "model.threads: 2"),
        ({"busy": 0.55}, "other programs use 55% of its cores", "model.threads"),
        ({"memory": Memory(64 * GIB, 64 * GIB, 2 * GIB)}, "only 2.0 GiB of memory", "small model"),
        ({"disks": (replace(RUNS, kind="nfs4"),)}, "network file system (nfs4)", "local disk"),
        ({"disks": (replace(RUNS, kind="fuse.sshfs"),)}, "network file system", "local disk"),
        ({"disks": (replace(RUNS, free=GIB),)}, "only 1.0 GiB left", "make room"),
        ({"disks": (replace(RUNS, writable=False),)}, "/runs, for runs, is not writable", "trainer.run_dir"),
        ({"disks": (replace(MODELS, writable=False),)}, "/cache, for converted models, is not", "XDG_CACHE_HOME"),
        ({"disks": (replace(MODELS, free=GIB, mount="/c"), RUNS)}, "converted models, has only", "XDG_CACHE_HOME"),
        (
            {"left_behind": {"/m/a": 540 << 20, "/m/b": 0}},
            "in memory: /m/a (540 MiB), /m/b (0 MiB)",
            "rm -r /m/a /m/b;",
        ),
        ({"disks": (replace(RUNS, free=GIB), replace(MODELS, free=GIB))}, "/runs, for runs, has only", "checkpoint"),
    ],
)
def test_one_oddity_gives_one_finding(changes, text, remedy):
    (finding,) = advise(replace(FINE, **changes))
    assert finding.severity is Severity.CARE
    assert text in finding.text
    assert remedy in finding.remedy


def test_a_cache_may_be_on_a_network_file_system():
    assert advise(replace(FINE, disks=(RUNS, replace(MODELS, kind="nfs4")))) == []


@pytest.mark.parametrize(("why", "remedy"), [("no C compiler was found", "install gcc"), ("/x is full", "fix that")])
def test_what_keeps_the_engine_from_native_steps_is_named(why, remedy):
    (finding,) = advise(replace(FINE, not_native=why))
    assert finding.severity is Severity.NEXT
    assert why in finding.text
    assert finding.remedy.startswith(remedy)


def test_a_missing_extra_is_named_with_what_to_install():
    lacking = replace(FINE, extras=(InstalledExtra("http", "the judgers http and llm", {"httpx": None}),))
    (finding,) = advise(lacking)
    assert finding.severity is Severity.NEXT
    assert finding.text == "the judgers http and llm: httpx is not installed"
    assert finding.remedy == "pip install 'loopwright[http]'"


def test_what_is_broken_comes_first():
    lacking = InstalledExtra("http", "the judgers http and llm", {"httpx": None})
    findings = advise(replace(FINE, extras=(lacking,), torch=Torch(error="ImportError: x")))
    assert [finding.severity for finding in findings] == [Severity.BROKEN, Severity.NEXT]


def test_what_could_not_be_found_out_is_no_oddity():
    unknown = replace(
        FINE,
        cores=Cores(None, None, None),
        memory=Memory(None, None, None),
        disks=(Disk(FolderPurpose.RUNS, "/runs", None, None, None, True),),
        torch=Torch(version="2.13"),
    )
    assert advise(unknown) == []


def test_every_extra_of_the_package_is_known_with_its_packages():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    declared = {
        name: {re.split("[<>=]", requirement)[0] for requirement in requirements}
        for name, requirements in project["optional-dependencies"].items()
        if name != "dev"
    }
    assert {name: set(packages) for name, (_, packages) in EXTRAS.items()} == declared
