"""Run a whole federation on this machine: kits, processes, run, results, stop."""

import csv
import io
import math
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sottovoce.deploy import job, kits
from sottovoce.deploy.bounds import work_of
from sottovoce.deploy.federation import DONE, WAITS, Administrator, Federation
from sottovoce.deploy.order import Order
from sottovoce.deploy.policy import NAME, OwnColumns, Policy, method_of
from sottovoce.experiments.planned import setup
from sottovoce.experiments.runfile import RunFile
from sottovoce.experiments.schema import Case, DeployTable
from sottovoce.experiments.toml import dump, read
from sottovoce.files import write_atomically
from sottovoce.reports.comparison import upward

TABLE = "table.csv"  # a site's own table, in a trial
ROW = "row"  # the column of ids that a trial makes, if the table has none
KEY = "join.key"  # the file of the secret that ids are keyed with
_UNSEEN = 5.0  # seconds without news of a job, after which we look whether the server was restarted
_SAY = 5.0  # seconds between two lines about how far the sites are
_ATTEMPTS = 100  # attempts at one run; each goes on from the sites' checkpoints


def poc(runfile: RunFile, out: Path, say: Callable[[str], None] = lambda line: None) -> Path:
    """Run a file's one case on a federation of this machine; return the folder with one folder per site."""
    made, known = out / "kits", out / "run.txt"
    Order(runfile.text, "").case(trial=True)  # refuse a file that is not for a federation, before anything is made
    text, tables = distributed(runfile)
    epsilon = None if made.exists() else cost(next(iter(runfile.cases.values())))
    order = Order(text, known.read_text() if known.exists() else new_name(runfile.title))
    sites = order.case()[2].sites
    if made.exists():
        if unknown := [site for site in sites if not (made / site).exists()]:
            raise ValueError(f"{made} has no kit of {', '.join(unknown)}: give another --out, where new kits are made")
        say(f"using {made} with its policies, ledgers and tables as they are; another --out makes new ones")
    else:
        say("making certificates")
        _furnish(order, tables, made, epsilon)
    write_atomically(known, order.run.encode())
    say(f"starting a server and {len(sites)} sites")
    with Federation(made, sites) as running:
        admin = Administrator(made / "admin", meanwhile=running.revive)
        try:
            submitted(order, admin, out / "job", say, revive=running.revive)
            known.unlink()  # the next one is another run
        finally:
            admin.close()
    return made


def cost(case: Case) -> float | None:
    """Return the epsilon that the sites have to agree to: that of the run file, or that of its noise by hand.

    >>> from sottovoce.experiments.schema import Data, MethodTable
    >>> noise = MethodTable(name="DpSgd", rate=0.1, sampling="full", gradient={"clip": 1.0, "noise": 0.05})
    >>> run = {"steps": 10, "every": 10}
    >>> cost(Case.model_validate({"data": {"name": "digits", "agents": 3, "limit": 300}, "task": {"name": "softmax"},
    ...                           "method": noise, "run": run}))
    5.76
    """
    if not case.privacy.enabled or case.privacy.epsilon is not None or case.columns is not None:
        return case.privacy.epsilon
    epsilon = setup(case, draws=False).account.epsilon
    if not math.isfinite(epsilon):
        raise ValueError(
            "the noise of this run file proves no finite epsilon, and a site agrees to one: give each release a clip "
            "and more noise, or set privacy.epsilon"
        )
    return float(upward(epsilon))


def _furnish(order: Order, tables: Mapping[str, bytes], made: Path, epsilon: float | None) -> None:
    """Make kits, policies and tables; an interrupt leaves none, so that the next trial does not use a part."""
    try:
        kits.provision(order.case()[2].sites, "localhost", free_port(), made)
        agree(order, made, epsilon)
        for site, table in tables.items():
            write_atomically(made / site / TABLE, table, private=True)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def distributed(runfile: RunFile) -> tuple[str, dict[str, bytes]]:
    """Return the run file for sites with a table each, and these tables.

    One CSV file is split by its column `party`; with [columns], by its columns. A run file on a ready-made set stays as
    it is: each site takes its own part of the set.
    """
    document, case = read(runfile.text), next(iter(runfile.cases.values()))
    path, column = case.data.file, document["data"].pop("party", None)
    if path is None:
        return runfile.text, {}
    if (column is None and case.columns is None) or not path.endswith(".csv"):
        raise ValueError(
            "a trial on this machine splits one CSV file among the sites: give data.party, the column that says who "
            "holds a row. Real sites have a file each (sottovoce deploy provision)"
        )
    with open(path, newline="") as file:
        lines = list(csv.DictReader(file))
    document["data"]["file"] = TABLE
    if case.columns is not None:
        document["data"]["id"] = case.data.id or ROW
        return dump(document), _by_columns(case, lines)
    made = {}
    for site in document["deploy"]["sites"]:
        own = [line for line in lines if line[column] == site]
        if not own:
            raise ValueError(f"{path} has no row of {site!r} in its column {column}: deploy.sites must name its values")
        made[site] = _as_csv([name for name in own[0] if name != column], own)
    return dump(document), made


def _by_columns(case: Case, lines: list[dict[str, str]]) -> dict[str, bytes]:
    """Return each site's own columns of one table; where it has no ids, the rows' numbers serve."""
    assert case.columns is not None
    assert case.columns.holders is not None
    numbered = lines if case.data.id else [{**line, ROW: str(number)} for number, line in enumerate(lines)]
    for name in (case.data.id or ROW, str(case.data.label), *case.data.columns):
        if not lines or name not in numbered[0]:
            raise ValueError(f"{case.data.file} has no column {name!r}, or no rows")
    label = {case.columns.active: [str(case.data.label)]}
    return {
        site: _as_csv([case.data.id or ROW, *own, *label.get(site, [])], numbered)
        for site, own in case.columns.holders.items()
    }


def _as_csv(names: list[str], lines: list[dict[str, str]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue().encode()


def new_name(title: str) -> str:
    """Return a name for a run, which no other run has.

    >>> new_name("My run")[:7]
    'my-run-'
    """
    words = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in title[:20].lower())
    return f"{words.strip('-') or 'run'}-{secrets.token_hex(4)}"


def agree(order: Order, made: Path, epsilon: float | None = None) -> None:
    """Write for each site the policy that agrees to exactly this run; `epsilon` where the run file states none."""
    _, case, deploy = order.case()
    if case.privacy.enabled and case.privacy.epsilon is None and epsilon is None:
        raise ValueError(
            "privacy.epsilon is missing: a site's policy bounds epsilon, and cannot bound noise that is given by hand. "
            "Write privacy.epsilon in the run file, and leave the noise out"
        )
    prints, key = kits.fingerprints(made, deploy.sites), secrets.token_hex(32)
    privacy, most = case.privacy, case.privacy.epsilon or epsilon or 1.0
    for site in deploy.sites:
        policy: dict[str, Any] = {
            "methods": [method_of(case)],
            "epsilon": most,
            "delta": privacy.delta,
            "budget": privacy.budget or most,
            "noise": [deploy.noise],
            "trust": [privacy.trust],
            **_most(case, deploy),
            "data": {"name": case.data.name} if case.data.file is None else {"file": case.data.file},
            "peers": {name: seen for name, seen in prints.items() if name != site},
        }
        if (asked := privacy.by_sums) is not None:
            policy["sums"] = {"colluding": asked.colluding}
        if case.data.unit is not None:
            policy["data"]["unit"] = case.data.unit
        if case.columns is not None:
            policy["columns"] = _own_columns(case, site)
            write_atomically(made / site / KEY, key.encode(), private=True)
        write_atomically(made / site / NAME, dump(policy).encode(), private=True)


def _most(case: Case, deploy: DeployTable) -> dict[str, float]:
    """Return bounds of the work: the run's own steps and deadline, and room for ten times its other numbers."""
    known = {name: Policy.model_fields[name].default for name in ("steps", "weights", "memory", "disk")}
    asked = {"steps": case.run.steps, "work": 10 * work_of(case), "deadline": deploy.deadline}
    return known | {name: value for name, value in asked.items() if value is not None}


def _own_columns(case: Case, site: str) -> dict[str, object]:
    """Return a site's agreement to its role in a run over columns."""
    assert case.columns is not None
    agreed = OwnColumns(
        id=str(case.data.id),
        key=KEY,
        features=(case.columns.holders or {})[site],
        label=case.data.label if site == case.columns.active else None,
    )
    return agreed.model_dump(exclude_none=True)


def submitted(
    order: Order, admin: Administrator, folder: Path, say: Callable[[str], None],
    revive: Callable[[], list[str]] = list,
) -> None:  # fmt: skip
    """Submit a run and watch it to its end; where a process or the server was lost, submit it again.

    It goes on from the sites' checkpoints. ValueError if a site refuses, or fails by itself.
    """
    sites = order.case()[2].sites
    job.write(folder, order.text, order.run, sites)
    for attempt in range(_ATTEMPTS):
        await_sites(admin, sites, revive, say)
        since = admin.server_since()
        number = admin.submit(folder)
        say(f"submitted {order.run}" + (f", attempt {attempt + 1}" if attempt else ""))
        status, why = watched(admin, number, since, say, revive)
        if status == DONE:
            return say("all sites are done")
        if why:
            raise ValueError(f"{order.run} ended: {'; '.join(dict.fromkeys(why))}")
        say(f"the job ended ({status}); the sites keep what they have stored")
    raise ValueError(f"the run did not end in {_ATTEMPTS} attempts: see the sites' logs")


def await_sites(
    admin: Administrator, sites: list[str], revive: Callable[[], list[str]],
    say: Callable[[str], None] = lambda line: None, seconds: float = 180.0,
) -> None:  # fmt: skip
    """Wait until all sites are connected; say who is waited for."""
    deadline, before = time.monotonic() + seconds, set[str]()
    while missing := set(sites) - set(admin.connected()):
        revive()
        if missing != before:
            say(f"waiting for {', '.join(sorted(missing))} to connect")
            before = missing
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"{', '.join(sorted(missing))} did not connect within {seconds:g} seconds: start them, then "
                "submit the run again (--run goes on with one that was begun)"
            )
        time.sleep(0.5)


def watched(
    admin: Administrator, number: str, since: float, say: Callable[[str], None], revive: Callable[[], list[str]]
) -> tuple[str, list[str]]:
    """Watch a job to its end; return its status, and why sites failed by themselves. `since`: the server's start.

    FLARE does not notice that a site was restarted in mid-job, and forgets jobs when its server is: such a job is
    aborted here, so that it can be submitted again.
    """
    shown, why, seen, due = "", list[str](), time.monotonic(), 0.0
    while True:
        for name in revive():
            say(f"{name} was started again")
        status = admin.status(number)
        sites = admin.where(number)
        if sites:
            seen = time.monotonic()
            why = [said["why"] for said in sites.values() if said.get("state") in ("failed", "stopped")]
            line = ", ".join(f"{name} {in_words(said)}" for name, said in sites.items())
            if line != shown and time.monotonic() > due:
                say(line)
                shown, due = line, time.monotonic() + _SAY
        if status.startswith("FINISHED"):
            return status, why
        lost = {name for name, said in sites.items() if said.get("state") == "not reached"}
        unseen = time.monotonic() - seen > _UNSEEN and admin.server_since() != since
        if unseen or (lost and lost & admin.without_jobs()):
            admin.abort(number)
            return "the server or a site was restarted", why
        time.sleep(0.5)


def in_words(said: dict[str, object]) -> str:
    """Say in a few words how far a site is.

    >>> in_words({"state": "running", "round": 3, "steps": 20, "waits for": "south"})
    '3/20 (waits for south)'
    """
    if said.get("state") != "running":
        return str(said.get("state"))
    waits = f" (waits for {said['waits for']})" if said.get("waits for") else ""
    return (f"{said.get('round', 0)}/{said['steps']}" if said.get("steps") else "preparing") + waits


def doing(job: Mapping[str, Any], connected: Sequence[str]) -> str:
    """Say what a job does, and who is missing if it has not started.

    >>> doing({"status": WAITS, "mandatory_clients": ["north", "south"]}, ["north"])
    'waits to start: south is not connected'
    >>> doing({"status": "done"}, [])
    'done'
    """
    missing = sorted(set(job.get("mandatory_clients", ())) - set(connected)) if job["status"] == WAITS else []
    are = "are" if len(missing) > 1 else "is"
    return f"{job['status']}: {', '.join(missing)} {are} not connected" if missing else str(job["status"])


def free_port() -> int:
    """Return a port of this machine that nobody uses now.

    >>> free_port() > 0
    True
    """
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
