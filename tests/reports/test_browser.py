"""Reports as people see them: a real browser loads four of them, wide, narrow, dark and on paper."""

import io
import json

import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.experiments import execute
from sottovoce.experiments.demo import DEMO
from sottovoce.experiments.runfile import RunFile
from tests.reports.browser import CHROMIUM, Browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt install chromium"),
    pytest.mark.xdist_group("browser"),
]
KINDS = ("demo", "compared", "columns", "deployed")
ROWS = """
title = "{title}"
[data]
name = "digits"
agents = 4
limit = 400
[task]
name = "softmax"
[network]
kind = "{kind}"
[method]
name = "DpSgd"
rate = 0.5
sampling = "full"
gradient = {{clip = 1.0}}
[run]
steps = 6
every = 2
seeds = [0, 1]
[privacy]
epsilon = 3.0
budget = 5.0
"""
COLUMNS = """
title = "Two organisations"
[data]
name = "digits"
[columns]
parties = 2
[task]
name = "vertical-representation"
[method]
name = "Bambi"
inner_steps = 1
batch = 50
rate_x = 0.1
rate_y = 0.1
[run]
steps = 4
every = 2
[privacy]
epsilon = 2.0
"""
# Text whose contrast with what is behind it is below the 4.5 that WCAG asks for.
FAINT = """(() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = (c) => { const v = c.slice(0, 3).map((x) => x / 255).map((x) => x <= 0.04045 ? x / 12.92
    : ((x + 0.055) / 1.055) ** 2.4); return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode, e = text.parentElement;
    if (!text.data.trim() || ["SCRIPT", "STYLE", "title"].includes(e.tagName) || !e.getClientRects().length) continue;
    const svg = e.closest("svg"), style = getComputedStyle(e);
    const [a, b] = [light(rgb(svg ? style.fill : style.color)), light(behind(svg ? svg.parentElement : e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push([text.data.trim().slice(0, 40), ratio.toFixed(2)]);
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def browser():
    made = Browser()
    yield made
    made.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Four finished reports, by kind: the folders and the statements that they must show."""
    base = tmp_path_factory.mktemp("reports")
    execute.execute(RunFile.load(DEMO, ["run.steps=10", "run.every=5", "data.count=1000"]), base / "demo")
    for kind in ("ring", "star"):
        execute.execute(RunFile.parse(ROWS.format(title=f"On a {kind}", kind=kind)), base / kind)
    execute.execute(RunFile.parse(COLUMNS), base / "columns")
    _deployed(base / "deployed")
    made = {kind: execute.report(base / kind) for kind in ("demo", "columns", "deployed")}
    made["compared"] = execute.report(base / "ring", base / "star", path=base / "compared.html")
    return made


def _deployed(folder):
    """Exact noise, a thread and a ledger per party."""
    rng = np.random.default_rng(0)
    parts = [sv.data.Part(rng.normal(k, 1, (60, 3)).astype(np.float32), np.arange(60), name=name)
             for k, name in enumerate(("north", "south", "east"))]  # fmt: skip
    problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(3))
    method = sv.methods.DpSgd(rate=0.3, gradient=sv.Release(clip=2.0, noise=0.2), sampling=sv.Full())
    sv.run(
        problem, parts, method, steps=4, every=2, network=sv.networks.ring(3), noise="discrete", out=folder,
        budget=sv.Budget(20.0, 1e-5), evaluate=lambda x: {"loss": jnp.sum((x - 1.0) ** 2)},
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (400, False)])
def test_a_report_loads_without_a_request_or_an_error_and_can_be_read(browser, reports, kind, width, dark):
    page = browser.open(reports[kind], width, dark)
    assert page.faults == []
    assert page.requests == [reports[kind].resolve().as_uri()]
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run(FAINT) == []
    assert page.run("[...document.querySelectorAll('svg[role=img]')].every((s) => s.getAttribute('aria-label'))")
    seen = page.run("document.querySelector('.glance').getBoundingClientRect().bottom")
    assert width == 400 or seen < 900  # the first screen


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_is_printed_whole(browser, reports, kind):
    from pypdf import PdfReader

    page = browser.open(reports[kind], 1200)
    paper = PdfReader(io.BytesIO(page.pdf()))
    text = "".join("".join(sheet.extract_text() for sheet in paper.pages).split())
    told = json.loads(reports[kind].with_suffix(".json").read_text())
    for row in told["rows"].values():
        guarantee = row["2. The Differential Privacy Guarantee"]
        promise = guarantee["2.1. The Promise of Differential Privacy"]
        for line in (*promise, *guarantee["2.6. Mixing Differential Privacy With Other Data Releases"]):
            assert "".join(line.replace("`", "").split()) in text  # names in backticks are set as code
    cut = "[...document.querySelectorAll('.wide')].filter((box) => box.scrollWidth > box.clientWidth + 1).length"
    page.ask("Emulation.setEmulatedMedia", media="print")
    page.ask("Emulation.setDeviceMetricsOverride", width=700, height=900, deviceScaleFactor=1, mobile=False)
    assert page.run(cut) == 0  # A4 less its margins
    covered = (
        "[...document.querySelectorAll('td:first-child')].filter((c) => getComputedStyle(c).position === 'sticky')"
    )
    assert page.run(f"{covered}.length") == 0  # a sticky cell has a background, which hid the lines of the table


def test_a_report_answers_to_pointer_keys_and_choices(browser, reports):
    page = browser.open(reports["demo"], 1200)
    page.run("document.querySelector('figure svg').focus()")
    page.run("document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}))")
    assert "epsilon" in page.run("document.querySelector('.tip:not([hidden])').textContent")
    table = "document.querySelector('section table')"
    page.run(f"{table}.tHead.rows[0].cells[1].querySelector('button').click()")
    found = page.run(f"[...{table}.tBodies[0].rows].map((r) => parseFloat(r.cells[1].innerText))")
    assert found == sorted(found)
    boxes = "[...document.querySelectorAll('fieldset[data-for=curves] input')]"
    assert page.run(f"{boxes}.filter((b) => b.checked).length") == 6
    assert page.run(f"{boxes}.filter((b) => !b.checked).every((b) => b.disabled)")  # six colours at once
    page.run(f"{boxes}.filter((b) => b.checked)[0].click()")
    page.run(f"{boxes}.filter((b) => !b.checked).at(-1).click()")
    drawn = "[...document.querySelector('[data-group=curves] > svg').querySelectorAll('g.series:not(.off)')]"
    assert page.run(f"{drawn}.length") == 6
    assert page.run(f"new Set({drawn}.map((g) => getComputedStyle(g.querySelector('.line')).stroke)).size") == 6
