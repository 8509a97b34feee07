"""Looks at the file that the graph wrote. It runs after the graph in the same folder, with the task at its standard
input.

Exit code 0 says right, 1 says wrong. Anything else is a failure of this script, and never a reward of 0.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

task = json.load(sys.stdin)
numbers = re.findall(r"\d+", Path("answer.txt").read_text("utf-8"))
# The last number counts: a model may write "9 + 22 = 31".
sys.exit(0 if numbers and int(numbers[-1]) == task["truth"] else 1)
