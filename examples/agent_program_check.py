"""The verifier of agent_program.py: it runs after the agent in the same folder, with the task at its standard input.

Exit code 0 says right, 1 says wrong. Anything else is a failure of the verifier, and never a reward of 0.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

task = json.load(sys.stdin)
answer = Path("answer.txt").read_text("utf-8").strip().removesuffix(".")
sys.exit(0 if answer == str(task["truth"]) else 1)
