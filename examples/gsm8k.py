"""GSM8K's format as tasks: the answer ends in `#### ` and the number, all before it is a worked solution.

data:
  kind: jsonl
  path: gsm8k_made_up.jsonl
  map: gsm8k.py:task
"""

from __future__ import annotations

from collections.abc import Mapping


def task(row: Mapping[str, str]) -> dict[str, object]:
    """A task like that of a JSONL file. A row without #### is an error, and names its line."""
    solution, mark, number = row["answer"].rpartition("####")
    if not mark:
        raise ValueError("the answer has no ####")
    prompt = f"{row['question']}\nThink step by step, and end with the answer as a number."
    return {"prompt": prompt, "truth": number.strip().replace(",", ""), "solution": solution.strip()}
