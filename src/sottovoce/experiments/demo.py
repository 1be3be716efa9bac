"""Run the demo: a run file that comes with the package, a table, and a report."""

from collections.abc import Callable, Sequence
from pathlib import Path

from sottovoce.experiments.execute import execute, report
from sottovoce.experiments.runfile import RunFile
from sottovoce.reports import Comparison

DEMO = Path(__file__).parent / "demo.toml"


def demo(out: str | Path, sets: Sequence[str] = (), say: Callable[[str], None] = lambda line: None) -> Comparison:
    """Run the demo into a folder, over an earlier demo if there is one, and write its ``report.html``."""
    out = Path(out)
    if (out / "comparison.json").exists():
        _clear(out)
    made = execute(RunFile.load(DEMO, sets), out, say=say)
    report(out)
    return made


def _clear(out: Path) -> None:
    """Remove the files of an earlier demo, and nothing else."""
    ours = ["checkpoint.npz", "model.npz", "result.json", "run.json", "run.json.lock"]
    ours += ["ledger.jsonl", "ledger.jsonl.head", "ledger.jsonl.lock"]
    for path in [*(file for name in ours for file in out.glob(f"*/*/{name}")), out / "comparison.json"]:
        path.unlink()
