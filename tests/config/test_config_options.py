"""No knob appears silently, and none is undocumented.

After adding an option on purpose: `python -m loopwright.config > tests/config/options.txt`, and docs/config.md.
"""

from __future__ import annotations

import re
from pathlib import Path

from loopwright.config.fields import options

ROOT = Path(__file__).parents[2]


def test_the_list_of_options_is_the_committed_one():
    assert list(options()) == (Path(__file__).parent / "options.txt").read_text().splitlines()


def test_every_option_is_documented_with_its_default():
    """The page has one heading per section, and under it a row for each option."""
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    for option in options():
        path, _, meaning = option.partition(": ")
        if path.startswith("eval.task_sets"):
            continue  # they are described under task_sets
        section, name = re.sub(r"\[\w+\]|\.N\b|\.NAME\b", "", path).split(".", 1)
        name = name.replace("agent.runners.", "agent.runner.")  # each of several is described as the only one
        name = name.replace("agent.runner.runner.", "agent.runner.")  # and that of a server as one that runs here
        row = re.search(rf"^\| `{re.escape(name)}` .*$", sections[section], re.M)
        assert row, f"{name} is not described under {section}"
        default = meaning.partition(" = ")[2]
        if default and not name.endswith("kind"):
            assert f"`{default}`" in row[0], f"the default of {path} is {default}"
