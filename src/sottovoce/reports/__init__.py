"""Compare finished runs and write about them: figures, tables, pictures, and a page that stands alone.

A folder that `sottovoce run --out mine` wrote becomes a page with:

    made = load("mine")
    print(made.table())
    write_report(made, "mine/report.html")
"""

from sottovoce.reports.comparison import Comparison, Outcome, PaperFigure, Row, load
from sottovoce.reports.page import render, write_report
from sottovoce.reports.words import findings

__all__ = ["Comparison", "Outcome", "PaperFigure", "Row", "findings", "load", "render", "write_report"]
