"""The rules that code and docs cite by letter are defined in docs/invariants.md, with tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
INVARIANTS = ROOT / "docs/invariants.md"
LETTER = re.compile(r"\b[TRDSW][0-9]{1,2}\b")
DEFINED = set(re.findall(r"^\*\*([TRDSW][0-9]{1,2})\*\* ", INVARIANTS.read_text(encoding="utf-8"), re.MULTILINE))


def test_every_cited_rule_is_defined() -> None:
    pages = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tools").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    cited = {page: LETTER.findall(page.read_text(encoding="utf-8")) for page in pages}
    unknown = {str(page.relative_to(ROOT)): sorted(set(found) - DEFINED) for page, found in cited.items()}
    assert sum(map(len, cited.values())) > 80, "the search finds the citations"
    assert not {page: letters for page, letters in unknown.items() if letters}


def test_every_rule_names_tests_that_exist() -> None:
    rules = re.split(r"^(?=\*\*)", INVARIANTS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    for rule in rules:
        named = re.findall(r"`(tests/[^`]+)`", rule.partition("\nTests: ")[2])
        assert named, f"no tests hold this rule: {rule}"
        for path, _, function in (name.partition("::") for name in named):
            assert (ROOT / path).exists(), f"{path} is not there, which holds: {rule}"
            if function:
                assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no {function}"
