"""What pages say about the tests: each one that is named exists, and no rule is without one."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def defined() -> set[str]:
    """Return the names of all tests, and of their files."""
    files = list((ROOT / "tests").rglob("test_*.py"))
    found = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text())}
    return found | {file.stem for file in files}


def test_every_test_that_a_page_names_exists():
    known = defined()
    named = {(page.name, name) for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())}
    assert len(named) > 30
    assert sorted(pair for pair in named if pair[1] not in known) == []


def test_every_rule_of_the_architecture_names_its_test():
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.split("| rule | where it is enforced | test |")[1].split("\n\n")[0]
    rules = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.strip().splitlines()[1:]]
    assert len(rules) > 30
    assert [rule[0] for rule in rules if len(rule) < 3 or not re.search(r"`test_\w+`", rule[-1])] == []
