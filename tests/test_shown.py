"""What prompts and notebooks show: short, and nothing of a row."""

import warnings

import numpy as np
import pytest

import sottovoce as sv

ROWS = {"age": [61.123, *range(20, 79)], "sex": ["SECRET"] * 60, "ill": [0, 1] * 30}
COLUMNS = {"age": {"range": (0, 120)}, "sex": {"categories": ["F", "M"]}, "ill": {"categories": ["no", "yes"]}}
PROBLEM = sv.Minimize(lambda x, r: ((x - r["features"]) ** 2).sum(), np.zeros(4), predict=lambda x, rows: rows @ x)
METHOD = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.5), sampling=sv.Full())


@pytest.fixture(scope="module")
def shown():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = sv.data.table(ROWS, "ill", columns=COLUMNS)
        result = sv.run(PROBLEM, table.parts(), METHOD, steps=1)
    columns = sv.Columns([np.full((60, 2), 61.123), np.full((60, 1), 61.123)])
    joined = sv.Table(columns, sv.Labels(np.arange(60) % 2, 2))
    levels = sv.data.levels(table.parts()[0], 0.5)
    raw = sv.data.Levels(np.full(60, 61.123), np.full(60, 61.123))
    return [table, *table.parts(), *table.notes, result, result.privacy, columns, joined, levels, raw,
            sv.Model(result.x, None, result.privacy)]  # fmt: skip


def test_what_is_shown_is_short_and_holds_no_row(shown):
    for one in shown:
        for text in filter(None, (repr(one), getattr(one, "_repr_html_", str)())):
            assert len(text) < 4000, type(one)
            assert not any(secret in text for secret in ("SECRET", "61.1", "0.509", "[0. ", "[[", "row 1")), text


def test_a_statement_begins_with_a_plain_sentence_in_bold(shown):
    page = next(one for one in shown if isinstance(one, sv.PrivacyReport))._repr_html_()
    assert page.index("font-weight:600") < page.index("An attacker tests whether") < page.index("epsilon is at most")
    table = shown[0]._repr_html_()
    assert "ill: no, yes" in table
    assert "60 from" in table


KERNEL = """
import numpy as np, sottovoce as sv
rows = {"age": ["63 years"] * 60, "ill": [0, 1] * 30}
declared = {"age": {"range": (0, 120)}, "ill": {"categories": [0, 1]}}
sv.data.table(rows, "ill", columns=declared)
"""


@pytest.mark.slow
def test_a_notebook_shows_a_table_and_hears_of_a_wrong_declaration():
    pytest.importorskip("ipykernel")
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel()
    heard = []
    try:
        client.execute_interactive(KERNEL, timeout=300, output_hook=heard.append)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    errors = "".join(one["content"].get("text", "") for one in heard if one["msg_type"] == "stream")
    assert "column 'age': none of its values can be read" in errors
    pages = [one["content"]["data"] for one in heard if one["msg_type"] == "execute_result"]
    assert "1 columns as 1 numbers" in pages[0]["text/html"]
    assert "63 years" not in errors + str(pages)
