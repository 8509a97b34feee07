"""Looks at the file that the graph wrote. It runs after the graph in the same folder, with the task at its standard
input.

Exit code 0 says right, 10 says wrong. Anything else is a failure of this script, and never a reward of 0.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

RIGHT, WRONG = 0, 10
"""Exit codes. A script that crashes exits with 1, which is no verdict."""

task = json.load(sys.stdin)
answer = Path("answer.txt")
# An agent that ran out of time has written nothing.
numbers = re.findall(r"[0-9]+", answer.read_text("utf-8")) if answer.is_file() else []
# The last number counts: a model may write "9 + 22 = 31".
sys.exit(RIGHT if numbers[-1:] == [str(task["truth"])] else WRONG)
