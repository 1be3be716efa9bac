"""Write the sections of a report's page as HTML: tables, parties, guarantees, and where everything comes from."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from os.path import relpath
from pathlib import Path

from sottovoce.privacy.report import LISTED, units_of
from sottovoce.reports import pictures
from sottovoce.reports.comparison import Comparison, Row, figure, upward
from sottovoce.reports.words import Answer, asked
from sottovoce.runtime.coefficients import WHAT_IT_IS
from sottovoce.runtime.result import TRAIN

_EVENT = re.compile(r"(\S+): (\w+) noise (\S+) on a mean clipped to (\S+) \((\w+)\), (.+), (once|\d+ times)")
_LINE = '<span class="line"></span>'
_TO_APPROVE = {"purpose": "Purpose", "controller": "Controller", "retention": "Kept until"}  # of [about] in a run file
_ROWS = 200  # parties that a page lists; report-parties.csv has all
_SEARCHED = 12  # parties from which on a table can be searched
MEASURED = "figures are measured on "  # first words of a line about rows that no noise covers
_NOT_CHARGED = (
    "Choosing among configurations by metrics of private records would cost privacy that is not counted here. The "
    "table <code>[select]</code> of a run file, or <code>sv.select</code>, chooses by a private score, and pays for it."
)

_CONTENT = {  # what the files beside the page hold, by the ending of their names
    ".json": "all of this page, for programs",
    ".csv": "the table of results",
    "-history.csv": "the figures of every step that was measured",
    "-parties.csv": "what each party holds, pays and sends",
    "-tradeoff.svg": "the picture of privacy and usefulness",
    "-curves.svg": "the pictures of the training",
}

_MOST = 25  # coefficients that a report lists: one run prints on five pages at most


def section(title: str, *body: str) -> str:
    """Return a section with its heading; nothing if it would be empty."""
    inner = "\n".join(part for part in body if part)
    return f"<section><h2>{escape(title)}</h2>\n{inner}</section>" if inner else ""


def paragraph(text: str, faint: bool = True) -> str:
    """Return plain words as a paragraph."""
    return f'<p class="faint">{escape(text)}</p>' if faint else f"<p>{escape(text)}</p>"


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], words: str, *, name: str = "", main: int | None = None
) -> str:
    """Return a table that can be sorted; `main` is the row that stands out, `words` name it for those who listen.

    >>> table(["", "epsilon"], [["a", "2"]], "results").count("<td")
    2
    """
    head = "".join(f'<th scope="col">{escape(text or "configuration")}</th>' for text in heads)
    body = "\n".join(
        ('<tr class="main">' if number == main else "<tr>")
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for number, cells in enumerate(rows)
    )
    known = f' id="{name}"' if name else ""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(words)}"><table class="sort"{known}><thead>'
        f"<tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
    )


def glance(answers: Sequence[Answer]) -> str:
    """Return the first screen."""
    found = []
    for answer in answers:
        lines = "".join(f"<p>{escape(line)}</p>" for line in answer.lines)
        if answer.more:
            folded = "".join(f"<p>{escape(line)}</p>" for line in answer.more)
            lines += f'<details class="more"><summary>Other figures</summary>{folded}</details>'
        tone = f' class="{answer.tone}"' if answer.tone else ""
        found.append(f"<dt>{escape(answer.question)}</dt><dd{tone}>{lines}</dd>")
    return f'<dl class="glance">{"".join(found)}</dl>'


def results(made: Comparison, told: Sequence[str]) -> str:
    """Return the main table and what it shows in a sentence."""
    heads, rows = made.table()
    counts = {len(row.runs) for row in made.rows}
    many = f"{max(counts)} seeds: mean ± standard deviation" if max(counts) > 1 else "one seed"
    on = (
        "on test records (train: on some private ones)"
        if any(one.startswith(TRAIN) for one in made.metrics)
        else "on test records"
    )
    label = all(row.privacy.unit == "label" for row in made.rows)
    figures = f"Metrics {on}, at the end of the run; {many}. "
    note = (figures if made.metrics else "") + (
        "Epsilon is for the whole run, " + ("of each label" if label else "of the party with the largest one")
    )
    note += ". Seconds include compilation."
    main = made.rows.index(made.main) if len(made.rows) > 1 else None
    return section(
        "Results",
        *(paragraph(line, faint=False) for line in told),
        table(heads, rows, "results", main=main),
        paragraph(note),
        "" if made.chosen or len(made.rows) == 1 else f'<p class="faint">{_NOT_CHARGED}</p>',
    )


def coefficients(made: Comparison) -> str:
    """Return the coefficients of the model that the first screen speaks of, where their errors are known."""
    found = made.main.runs[0].coefficients
    if found is None:
        return ""
    heads, rows = found.table()
    more = f" The model card has all {len(rows)}." if len(rows) > _MOST else ""
    note = paragraph(f"Effects on {found.on}. {WHAT_IT_IS}{more}")
    return section("Coefficients", table(heads, rows[:_MOST], "coefficients", name="coefficients"), note)


def printed(made: Comparison) -> str:
    """Return a paper's figures beside ours."""
    if not made.printed:
        return ""
    metric = made.metric
    ours = [
        [
            f"ours: {row.name}",
            figure(row.final(metric)[0]) if metric is not None and metric in row.metrics else "-",
            upward(row.privacy.epsilon),
            row.privacy.adjacency if row.privacy.private else "",
            "this run",
        ]
        for row in made.rows
    ]
    theirs = [[entry.what, figure(entry.value), figure(entry.epsilon), "", entry.source] for entry in made.printed]
    heads = ["", "value", "epsilon", "adjacency", "source"]
    return section("Compared with the paper", table(heads, [*theirs, *ours], "printed figures and ours"))


def charts(group: str, panels: Sequence[str], caption: str) -> str:
    """Return panels side by side; `group` joins them to a choice of lines."""
    figures = "".join(f'<figure data-group="{group}">{panel}</figure>' for panel in panels)
    return f'<div class="charts">{figures}</div>{paragraph(caption) if caption else ""}' if panels else ""


def choice(group: str, legend: str, names: Sequence[str], shown: Sequence[int]) -> str:
    """Return boxes that choose which lines are drawn; nothing where all of them are."""
    if len(names) <= len(shown):
        return ""
    slots = {number: slot for slot, number in enumerate(sorted(shown))}
    boxes = "".join(
        f'<label{_class(slots.get(number))}><input type="checkbox" value="{number}"'
        f"{' checked' if number in slots else ''}>{escape(name)}</label>"
        for number, name in enumerate(names)
    )
    return f'<fieldset class="script" data-for="{group}"><legend>{escape(legend)}</legend>{boxes}</fieldset>'


def _class(slot: int | None) -> str:
    return "" if slot is None else f' class="s{slot}"'


def parties(made: Comparison) -> str:
    """Return who took part in the main row: sizes, what each pays, its figure at the end, and what it sends."""
    row, metric = made.main, made.metric
    about, report, names = row.about, row.privacy, row.called
    if not names:
        return ""
    heads, columns = ["party"], [list(names)]
    for what, counts in about.sizes.items():
        heads.append(units_of(what))
        columns.append([f"{count}" for count in counts])
    if len(report.per_agent) == len(names):
        heads.append("epsilon it pays")
        columns.append([upward(epsilon) for epsilon in report.per_agent])
    each = row.runs[0].history.get(f"{metric}/agents")
    if each is not None and each.shape[1] == len(names):
        heads.append(f"{metric} at the end")
        columns.append([f"{value:#.4g}" for value in each[-1]])
    for what, counts in (("sends", about.sent), ("receives", about.received)):
        if any(counts) and len(counts) == len(names):
            heads.append(f"{what}, kB")
            columns.append([_bytes(count) for count in counts])
    cells = [list(cells) for cells in zip(*columns)]
    search = ""
    if len(cells) > _SEARCHED:
        search = (
            '<p class="script"><label>Find a party <input type="search" data-table="parties" '
            'autocomplete="off"></label></p>'
        )
    note = "" if len(made.rows) == 1 else f"Of “{row.name}”. "
    if each is not None and len(row.runs) > 1:
        note += f"The {metric} of a party is that of the first of {len(row.runs)} seeds. "
    if len(cells) > _ROWS:
        note += f"The first {_ROWS} of {len(cells)} parties; report-parties.csv has all. "
    if report.unit == "label":
        note += f"Epsilon is counted per label, not per party: at most {upward(report.epsilon)} for each label. "
    if each is not None and len(names) > 1 and pictures.agree(each):
        note += f"All parties have the same {metric} throughout. "
    picture = pictures.parties(made)
    drawn = "" if picture is None else _drawn_parties(made, picture, names, str(metric))
    return section(
        "The parties", paragraph(note) if note else "", search,
        table(heads, cells[:_ROWS], "the parties", name="parties"), drawn,
    )  # fmt: skip


def _drawn_parties(made: Comparison, picture: str, names: Sequence[str], metric: str) -> str:
    shown = pictures.parties_first(made)
    some = "; six are drawn at first, from the worst to the best" if len(shown) < len(names) else ""
    caption = f"The {metric} of each party's own model{some}."
    return choice("parties", "Parties shown (six at most)", names, shown) + charts("parties", [picture], caption)


def graphs(made: Comparison) -> str:
    """Return a picture of each network that some row uses."""
    found: dict[tuple[object, ...], str] = {}
    for row in made.rows:
        about = row.about
        if about.links and about.network:
            key = (about.network, about.links, about.parties)
            found.setdefault(key, pictures.graph(row.called, about.links, about.network))
    figures = "".join(
        f'<figure class="graph">{drawn}<figcaption>{escape(str(key[0]))}</figcaption></figure>'
        for key, drawn in found.items()
    )
    return section("Who talks to whom", f'<div class="charts">{figures}</div>' if found else "")


def costs(made: Comparison) -> str:
    """Return what each row takes: time, and the bytes of its messages."""
    rows, talks = [], any(any(row.about.sent) for row in made.rows)  # a party by itself sends nothing
    for row in made.rows:
        sent, steps = sum(row.about.sent), row.privacy.steps
        messages = [_bytes(sent), _bytes(max(row.about.sent, default=0))] if talks else []
        rows.append(
            [row.name, f"{steps}", f"{row.seconds:.1f}", f"{1000 * row.seconds / max(steps, 1):.1f}", *messages]
        )
    heads = ["", "steps", "seconds", "ms per step"]
    if not talks:
        return section("Time", table(heads, rows, "time"))
    note = "Bytes count the values in messages."
    if any(row.privacy.drawn != "exact" for row in made.rows):
        note += " A simulation sends nothing: the figures say what a deployed run would send."
    heads += ["sent by all, kB", "by one party at most, kB"]
    return section("Messages and time", table(heads, rows, "messages and time"), paragraph(note))


def _bytes(count: int) -> str:
    return f"{count / 1e3:,.1f}" if count else "-"


def guarantees(made: Comparison) -> str:
    """Return every row's statement, in full; the main one is open. What all private rows share is said once."""
    private = [row.privacy for row in made.rows if row.privacy.private]
    shared: list[str] = []
    if len(private) > 1:
        first = (*private[0].words(), *private[0].caveats)
        shared = [line for line in first if all(line in (*one.words(), *one.caveats) for one in private)]
    return section(
        "What is guaranteed",
        lines("For every row with a guarantee", shared),
        *(_guarantee(row, row is made.main, shared) for row in made.rows),
    )


def _guarantee(row: Row, shown: bool, shared: Sequence[str]) -> str:
    report = row.privacy
    body = [f"<p>{escape(report.statement())}</p>"]
    if report.published is not None:
        body.append(f"<p>The paper prints epsilon {upward(report.published)} for this configuration.</p>")
    if report.private and 1 < len(report.parties) <= LISTED and min(report.per_agent) < 0.995 * report.epsilon:
        paying: dict[str, list[str]] = {}
        for name, epsilon in zip(row.called, report.per_agent):
            paying.setdefault(upward(epsilon), []).append(name)
        each = "; ".join(f"{epsilon} ({', '.join(names)})" for epsilon, names in paying.items())
        body.append(f"<p>Epsilon per party: {escape(each)}.</p>")
    own = [line for line in report.caveats if not report.private or line not in shared]
    body += [
        lines("In plain words", [line for line in report.words() if line not in shared]),
        lines("Released, and charged", map(in_words, report.events)),
        lines("Notes", own),
    ]
    short = f": epsilon {upward(report.epsilon)}" if report.private else ': <span class="no">no guarantee</span>'
    if f"epsilon {upward(report.epsilon)}" in row.name.split(", "):  # the row's name says it already
        short = ""
    state = " open" if shown else ""
    return f"<details{state}><summary>{escape(row.name)}{short}</summary>{''.join(body)}</details>"


def lines(title: str, told: Iterable[str]) -> str:
    """Return lines of text as a list, below a title if there is one."""
    items = "".join(f"<li>{_with_code(line)}</li>" for line in told)
    head = f'<p class="faint">{title}</p>' if title else ""
    return f"{head}<ul>{items}</ul>" if items else ""


def _with_code(line: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(line))


def in_words(event: str) -> str:
    """Say in words what one line of a statement says in terms of the program.

    >>> in_words("gradient: gaussian noise 0.07 on a mean clipped to 1 (l2), Full(), 100 times")
    '100 times: a mean over records, with gaussian noise of scale 0.07; each record is shortened to a length of 1 (l2),
    and each step reads all records. In the program: gradient, Full()'
    """
    found = _EVENT.fullmatch(event)
    if found is None:
        return event
    name, law, noise, clip, norm, sampling, often = found.groups()
    reads = "each step reads all records" if sampling == "Full()" else f"a step reads the records of {sampling}"
    length = f"each record is shortened to a length of {clip} ({norm}), and " if clip != "inf" else ""
    return (
        f"{often}: a mean over records, with {law} noise of scale {noise}; {length}{reads}. In the program: {name}, "
        f"{sampling}"
    )


def approval(made: Comparison) -> str:
    """Return what a data-protection officer fills in: purpose, controller, retention, and a line to sign."""
    about = asked(made)["about"]
    given = "".join(
        f"<dt>{words}</dt><dd>{escape(str(about[key])) if about.get(key) else _LINE}</dd>"
        for key, words in _TO_APPROVE.items()
    )
    return section(
        "Approval", f'<dl class="glance approval">{given}<dt>Date, name, signature</dt><dd>{_LINE}</dd></dl>'
    )


def public(made: Comparison) -> str:
    """Return what was taken as public, so that no noise covers it."""
    return section("What was taken as public", lines("", taken_as_public(made)))


def taken_as_public(made: Comparison) -> list[str]:
    """List what the statements take as public."""
    found = [line for row in made.rows for line in (*row.about.public, *row.privacy.caveats) if _is_public(row, line)]
    tested = [row for row in made.rows if any(not metric.startswith(TRAIN) for metric in row.metrics)]
    if any(run.public_test for row in tested for run in row.runs):
        which = "" if all(run.public_test for row in tested for run in row.runs) else ", of some rows"
        found.append(f"the test records that metrics are computed on{which}")
    return list(dict.fromkeys(line.removeprefix("declared and ").removeprefix("taken as public: ") for line in found))


def _is_public(row: Row, line: str) -> bool:
    """Say whether a line is about public facts; the rows that figures are measured on are not among them."""
    if line.startswith(MEASURED):
        return False
    return line in row.about.public or "public" in line.split(":")[0] or line.startswith("the number of ")


def provenance(made: Comparison) -> str:
    """Return where the data come from, when the runs ended, and with which versions."""
    dates = sorted({run.about.date for row in made.rows for run in row.runs if run.about is not None})
    sets = list(dict.fromkeys(tuple(row.about.versions.items()) for row in made.rows if row.about.versions))
    sources = made.sources or ("The data were handed to this program; it does not know where they come from.",)
    when = "" if not dates else dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return section(
        "Data, date and versions",
        *(paragraph(line, faint=False) for line in sources),
        paragraph(f"Ended (UTC): {when.replace('T', ' ').replace('+00:00', '')}.", faint=False) if when else "",
        *(paragraph("Made with " + ", ".join(f"{name} {known}" for name, known in one) + ".", False) for one in sets),
    )


def files(made: Comparison, target: Path, beside: Sequence[str]) -> str:
    """Return links to what was written beside the page, and to the model cards."""
    cards = [("model card", run.card, row.name) for row in made.rows for run in row.runs if run.card is not None]
    listed = [(name, target.with_name(name), _CONTENT[name.removeprefix(target.stem)]) for name in beside] + cards
    items = "".join(
        f'<li><a href="{escape(Path(relpath(path, target.parent)).as_posix())}">{escape(name)}</a>: {escape(what)}</li>'
        for name, path, what in listed
    )
    return section("Files", f"<ul>{items}</ul>" if items else "")
