"""Looks at the file that the agent was to write. It runs after the agent in the same folder, with the task at its
standard input.

Exit code 0 says right, 10 says wrong. Anything else is a failure of this script, and never a reward of 0.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

RIGHT, WRONG = 0, 10
"""Exit codes. A script that crashes exits with 1, which is no verdict."""

task = json.load(sys.stdin)
answer = Path("answer.txt")
right = answer.is_file() and answer.read_text("utf-8", "replace").strip() == task["truth"]
sys.exit(RIGHT if right else WRONG)
