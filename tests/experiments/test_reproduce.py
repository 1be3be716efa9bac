"""The papers' experiments: each one's quick version runs, and the pages of results are those of the committed files."""

import csv

import pytest
from benchmarks import results as pages

from sottovoce import data
from sottovoce.experiments.execute import execute
from sottovoce.experiments.runfile import RunFile
from sottovoce.laboratory import results
from sottovoce.laboratory.reproduce import experiments, find


# A group of its own per experiment, because one worker would need twice the time for all of them.
@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in experiments()])
def test_every_experiment_runs_in_its_quick_version(name, tmp_path):
    runfile = RunFile.load(find(name), scale="quick")
    sets = {case.data.name for case in runfile.cases.values()}
    if absent := [one for one in sets if one in data.names() and not data.available(one)]:
        pytest.skip(f"{absent} is not on this machine")
    made = execute(runfile, tmp_path / "out")
    assert {row.name for row in made.rows} >= set(runfile.cases)
    table, _ = results.write(tmp_path, name, "quick", runfile, tmp_path / "out")
    _, lines = pages.read(table)
    assert len(lines) == sum(len(row.runs) for row in made.rows)
    assert all(line["epsilon"] for line in lines)


def test_the_pages_of_results_are_made_from_the_committed_files():
    wanted = pages.files()
    there = {*pages.FOLDER.glob("*.md"), *pages.FOLDER.glob("*/*.svg"), pages.PAGE}
    assert there == set(wanted), "run `make results`"
    for path, text in wanted.items():
        assert path.read_text() == text, f"{path.name} is not what its files give: run `make results`"


def test_every_experiment_says_what_it_is_and_a_result_what_it_was_made_by():
    for made in (one for group in pages.experiments().values() for one in group):
        command, versions, *said = made.comments
        assert command.startswith(f"sottovoce reproduce {made.name}")
        assert versions.startswith("sottovoce ")
        assert any(line.startswith("redrawn by each seed") for line in said)
        assert made.runfile.about, made.name


def test_a_page_shows_ours_beside_the_papers(tmp_path):
    """A made-up result: means, ranges, worst agents, both epsilons and a run that diverged."""
    folder = tmp_path / "results" / "bambi"
    folder.mkdir(parents=True)
    with (folder / "table2.csv").open("w", newline="") as file:
        file.write("# sottovoce reproduce bambi/table2\n# sottovoce 0.1.0, 2026-01-01\n")
        head = "variant,kind,seed,accuracy,loss,worst accuracy,epsilon,published,delta,adjacency,steps"
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*head.split(","), "messages", "numbers", "batches", "settings"])
        for seed, accuracy in enumerate((0.8, 0.9)):
            writer.writerow(
                ["ours", "together", seed, accuracy, 1, 0.7, 2.0001, 1.5, 0, "", 9, 3, 4, 5, "method.rate = 1"]
            )
        writer.writerow(["wild", "together", 0, *[""] * 11, ""])
    made = pages.files(tmp_path / "results")
    text = made[tmp_path / "results" / "bambi.md"]
    measured = "0.8500 (0.8000 to 0.9000) | 1.000 (1.000 to 1.000)"
    assert f"| ours | {measured} | 0.7 | 2.01 | 1.5 | 3 | 4 | 5 | `method.rate = 1` |" in text
    assert "| wild (1 of 1 runs diverged) | - |" in text
    assert "| *BAMBI (Table 2)* | *0.8552* |" in text
    assert "[bambi/table2](results/bambi.md#bambitable2)" in made[tmp_path / "results.md"]
