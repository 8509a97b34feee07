"""Runs the script that the agent was to write. It runs after the agent in the same folder, with the task at its
standard input.

Exit code 0 says right, 10 says wrong. Anything else is a failure of this script, and never a reward of 0.
"""

from __future__ import annotations

import json
import subprocess
import sys

RIGHT, WRONG = 0, 10
"""Exit codes. A script that crashes exits with 1, which is no verdict."""

SECONDS = 10

task = json.load(sys.stdin)
try:
    ran = subprocess.run(["sh", "run.sh"], capture_output=True, text=True, timeout=SECONDS, check=False)
except subprocess.TimeoutExpired:
    sys.exit(WRONG)
sys.exit(RIGHT if ran.stdout.strip() == task["truth"] else WRONG)
