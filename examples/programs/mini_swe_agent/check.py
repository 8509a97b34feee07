"""Calls the function that the agent was to mend. It runs after the agent in the same folder, with the task at its
standard input: `truth` has arguments and what the function gives for them.

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
name = task["id"]
calls = ", ".join(f"{name}({arguments})" for arguments in task["truth"])
script = f"import json; from {name} import {name}; print(json.dumps([{calls}]))"
try:
    # A process of its own: code of the agent must not decide how this script ends.
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS, check=False)
    given = json.loads(ran.stdout)
except (subprocess.TimeoutExpired, ValueError):
    sys.exit(WRONG)
sys.exit(RIGHT if given == list(task["truth"].values()) else WRONG)
