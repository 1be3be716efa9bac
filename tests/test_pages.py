"""What the pages hold: each public name, tests that exist, and no rule without one."""

import re
from pathlib import Path
from types import ModuleType

import sottovoce as sv

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


def test_the_reference_has_every_public_name_and_method():
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    described = set(re.findall(r"auto\w+:: sottovoce\.([\w.]+)", pages))
    names = {name for name in sv.__all__ if not isinstance(getattr(sv, name), ModuleType)}
    methods = {f"methods.{name}" for name in sv.methods.available}
    assert len(names) > 30
    assert len(methods) > 20
    assert sorted((names | methods) - described) == []


def test_the_glossary_says_what_check_says():
    method = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(clip=1.0, noise=1.0), sampling=sv.Full())
    setting = {"steps": 10, "adjacency": "zero-out"}
    method = sv.calibrate(method, sv.Population([1000]), epsilon=1.0, **setting)
    said = re.search(r"at most [\d.]+ in 100", sv.account(method, sv.Population([1000]), **setting).meaning)
    glossary = " ".join((ROOT / "docs" / "glossary.md").read_text().split())
    assert said is not None
    assert f"1 false alarm in 100 finds {said[0]} of the people who took part" in glossary
