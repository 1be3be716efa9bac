"""Define ``audit``: attack a run file, a published claim, or the messages of an agent.

Slow imports stay inside the commands, so that the help text appears at once.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from sottovoce.commands.costs import setups
from sottovoce.commands.terminal import Json, Quick, Reduced, Set, console, print_json, print_line, say, scale_of

if TYPE_CHECKING:
    from sottovoce.experiments.runfile import Scale


def audit(
    file: Annotated[Path | None, typer.Argument(help="a run file", metavar="[FILE.toml]")] = None,
    exhibit: Annotated[str | None, typer.Option("--exhibit", help="a published claim to attack, or all")] = None,
    attack: Annotated[str | None, typer.Option("--attack", help="dlg: reconstruct pictures from messages")] = None,
    trials: Annotated[int, typer.Option("--trials", help="runs under each hypothesis")] = 20_000,
    adversary: Annotated[str, typer.Option("--adversary", help="canary, replay or one-run")] = "canary",
    repeat: Annotated[int, typer.Option("--repeat", help="number of audits; the largest bound counts")] = 1,
    runtime: Annotated[str, typer.Option("--runtime", help="vectorised or threads")] = "vectorised",
    noise: Annotated[str, typer.Option("--noise", help="simulated, or discrete on threads")] = "simulated",
    data: Annotated[str, typer.Option("--data", help="pictures for --attack")] = "mnist",
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="where pictures of --attack go")] = Path("audit"),
    set_: Set = None,
    reduced: Reduced = False,
    quick: Quick = False,
    json: Json = False,
) -> None:
    """Measure a lower bound on epsilon by attacks, and compare it with the claimed epsilon.

    Examples:

        sottovoce audit mine.toml --trials 5000
        sottovoce audit mine.toml --adversary one-run --runtime threads
        sottovoce audit --exhibit bambi-multiclass --quick
        sottovoce audit --exhibit sound-designs
        sottovoce audit --attack dlg

    Give one of the three: a run file, --exhibit or --attack.
    """
    if [file is not None, exhibit is not None, attack is not None].count(True) != 1:
        raise ValueError("give a run file, --exhibit NAME or --attack dlg: one of the three")
    if file is not None:
        how = {"adversary": adversary, "trials": trials, "repeat": repeat, "runtime": runtime, "noise": noise}
        _audit_file(file, set_, scale_of(reduced, quick), how, json)
    elif exhibit is not None:
        _exhibit(exhibit, quick, json)
    elif attack == "dlg":
        from sottovoce.laboratory.dpmixsgd import leakage

        small = {"count": 4, "steps": 60, "batch": 0} if quick else {}
        cases = leakage.main(out, data, say=say if json else print_line, **small)  # type: ignore[arg-type]
        if json:
            told = [{"sent": one.name, "epsilon": one.epsilon, "labels read": one.labels_right} for one in cases]
            scored = [{kind: dict(zip(("SSIM", "PSNR"), pair)) for kind, pair in one.scores.items()} for one in cases]
            print_json([{**one, **scores} for one, scores in zip(told, scored)])
    else:
        raise ValueError(f"there is no attack {attack!r}: choose dlg")


def _audit_file(file: Path, sets: list[str] | None, scale: "Scale", how: dict[str, Any], json: bool) -> None:
    from dataclasses import asdict

    from sottovoce.audit import audit as measure

    failed, found = [], {}
    for name, setup in setups(file, sets, scale):
        finding = measure(
            setup.method,
            setup.data,
            problem=setup.problem,
            network=setup.graph,
            trust=setup.trust,
            steps=setup.steps,
            delta=setup.delta,
            adjacency=setup.case.privacy.adjacency,
            **how,
        )
        found[name] = {**asdict(finding), "passed": finding.passed}
        if not json:
            console.print(escape(f"{name}: {finding}"), highlight=False)
        failed += [] if finding.passed else [name]
    if json:
        print_json(found)
    if failed:
        raise ValueError(f"measured above the claimed epsilon, so the claim is false: {', '.join(failed)}")


def _exhibit(name: str, quick: bool, json: bool) -> None:
    from dataclasses import asdict

    from sottovoce.laboratory import exhibits
    from sottovoce.naming import unknown

    if name != "all" and name not in exhibits.available:
        raise ValueError(unknown("exhibit", name, exhibits.available))
    found = {}
    for one in exhibits.available if name == "all" else [name]:
        rows = exhibits.run(one, quick=quick)
        found[one] = [{**asdict(row), "verdict": row.verdict} for row in rows]
        if not json:
            shown = exhibits.available[one]
            console.print(f"{escape(one)}: {escape(shown.says)} ({escape(shown.paper)})", highlight=False)
            table = Table(box=None, header_style="dim")
            for head in exhibits.HEADS:
                table.add_column(head, justify="left" if head in ("case", "verdict") else "right")
            for row in rows:
                table.add_row(*map(escape, exhibits.cells(row)))
            console.print(table)
    if json:
        print_json(found)
