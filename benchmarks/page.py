"""Write what benchmarks printed into docs/benchmarks.md, each between its own marks, and leave the rest as it is."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

from benchmarks import measure

PAGE = measure.ROOT / "docs" / "benchmarks.md"


def write(name: str, printed: str, page: Path = PAGE) -> None:
    """Put what the benchmark `name` printed between its marks; a benchmark without marks is added at the end."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    stamp = f"{measure.machine()}; {datetime.date.today().isoformat()}; {measure.yardstick()}"
    section = f"{begin}\n{printed.strip()}\n\n{stamp}\n{end}"
    text = page.read_text()
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if pattern.search(text):
        text = pattern.sub(lambda _: section, text)
    else:
        text = f"{text.rstrip()}\n\n## {name}\n\n{section}\n"
    page.write_text(text)
