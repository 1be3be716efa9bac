"""Define ``sottovoce deploy``: a federation across organisations, on NVIDIA FLARE.

Slow imports stay inside the commands, so that the help text appears at once.
"""

import threading
import time
from contextlib import closing
from datetime import UTC, datetime
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sottovoce.commands.terminal import (
    Json,
    RunFilePath,
    Set,
    print_json,
    print_line,
    say,
    say_replaced,
    stoppable,
)

if TYPE_CHECKING:
    from sottovoce.deploy.federation import Administrator

_HELP = """Run across organisations: each party in its own place, with its own data, ledger and veto.

**Try it on this machine**

    # a server and a process per site, by one command
    sottovoce deploy poc FILE.toml

**For real** (docs/deploy.md is the guide)

    # certificates for everybody
    sottovoce deploy provision FILE.toml --host relay.example.org
    # at the relay; then at each site, whose owner has edited policy.toml
    sottovoce deploy site kits/server
    sottovoce deploy site kits/north
    # start the run and watch it; see who is there, and why a round waits
    sottovoce deploy submit FILE.toml --admin kits/admin
    sottovoce deploy status --admin kits/admin
    # stop it; what is stored stays
    sottovoce deploy stop --admin kits/admin

The run file needs a table [deploy] with the names of the sites. Install with: pip install 'sottovoce[deploy]'
"""
app = typer.Typer(help=_HELP, rich_markup_mode="markdown", no_args_is_help=True)
_ASKED_TO_END = threading.Event()
Kit = Annotated[Path, typer.Argument(metavar="KIT", help="the folder of a kit")]
Admin = Annotated[Path, typer.Option("--admin", metavar="KIT", help="the administrator's kit")]


@app.command()
def poc(
    file: RunFilePath,
    set_: Set = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="[default: deployed/NAME]")] = None,
    json: Json = False,
) -> None:
    """Run a file on a whole federation of this machine: certificates, a server, a process per site; then stop it all.

    sottovoce deploy poc mine.toml --out trial

    Each site's result, report and ledger are in DIR/kits/SITE. Noise is exact, unless [deploy] asks for "simulated".
    """
    _needed()
    from sottovoce.deploy.poc import poc as run
    from sottovoce.experiments.runfile import RunFile

    runfile = RunFile.load(file, set_ or ())
    say_replaced(runfile.replaced)
    folder = out or Path("deployed") / file.stem
    with stoppable("Every process that was started is ended. The same command goes on from what is stored."):
        made = run(runfile, folder, say)
    reports = sorted(made.glob("*/runs/*/report.html"))
    if json:
        return print_json({"kits": made, "reports": reports})
    for report in reports:
        print_line(f"Report: {report}")


@app.command()
def provision(
    file: RunFilePath,
    host: Annotated[str, typer.Option("--host", help="the server's name, as all sites reach it")],
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="the one port that the server opens")] = 8002,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="where the kits go")] = Path("kits"),
    json: Json = False,
) -> None:
    """Make certificates and settings for the server, each site of [deploy], and the administrator.

    sottovoce deploy provision mine.toml --host relay.example.org

    Send each kit to its owner by a safe way. Each site's owner reads and edits policy.toml in it: nothing runs that it
    does not agree to.
    """
    _needed()
    from sottovoce.deploy import kits
    from sottovoce.deploy.order import Order
    from sottovoce.deploy.poc import agree
    from sottovoce.deploy.policy import require_own_tables
    from sottovoce.experiments.runfile import RunFile

    order = Order(RunFile.load(file).text, "")
    _, case, deploy = order.case()
    require_own_tables(case)
    sites = deploy.sites
    kits.provision(sites, host, port, out)
    agree(order, out)
    made = {name: out / name for name in (kits.SERVER, *sites, "admin")}
    if json:
        print_json({"kits": made})
    else:
        for kit in made.values():
            print_line(str(kit))
    say("Each site: read and edit policy.toml before you start. Keys are secret: send kits safely.")


@app.command()
def site(
    kit: Kit,
    account: Annotated[
        str | None, typer.Option("--account", metavar="NAME", help="run FLARE's process of a site under this account")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print a JSON document per line in place of text")] = False,
) -> None:
    """Run a site, or the server, from its kit, until Ctrl-C; it is started again if it dies.

    Examples:

        sottovoce deploy site kits/north
        sottovoce deploy site kits/north --account flare

    With --account, FLARE's process runs under that account and not yours; this needs root.
    """
    _needed()
    tell = _say_as_json if json else say
    from sottovoce.deploy.confine import in_words, reaches
    from sottovoce.deploy.engine import address
    from sottovoce.deploy.federation import end, require_account, require_idle, start, unreached
    from sottovoce.deploy.policy import Policy

    host, port = address(kit)
    server = (kit / "startup" / "fed_server.json").exists()
    if not server:
        policy = Policy.load(kit / "policy.toml")
        tell(f"agrees to {', '.join(policy.methods)} up to epsilon {policy.epsilon:g}, with {', '.join(policy.peers)}")
        table = None if policy.data.file is None else kit / policy.data.file
        tell(in_words())
        if table is not None and reaches(table):
            tell(f"{table} lies among the programs of this machine, which FLARE's process can read: move it")
        if table is not None and not table.exists():
            tell(f"there is no table {table} ([data] file in policy.toml): put it there before a run")
    require_idle(kit, server)
    if account is not None:
        require_account(account)
    tell(f"{kit.name} runs; what it prints is in {kit / 'console.log'}. Ctrl-C ends it")
    process, trouble, look = start(kit, server, account), "" if server else "not looked at", 0.0
    try:
        while True:
            if trouble and time.monotonic() > look:
                before, trouble, look = trouble, unreached(host, port), time.monotonic() + 5.0
                if trouble != before:
                    tell(trouble or f"{host}:{port} answers")
            if _ASKED_TO_END.is_set():
                raise KeyboardInterrupt
            if process.poll() is not None:
                tell(f"{kit.name} has ended ({process.returncode}): starting it again. Its last line: {_last(kit)}")
                time.sleep(2.0)
                process = start(kit, server, account)
            time.sleep(0.5)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        end(process)


@app.command()
def submit(
    file: RunFilePath,
    admin: Admin,
    set_: Set = None,
    run: Annotated[str | None, typer.Option("--run", metavar="NAME", help="go on with this run")] = None,
    json: Json = False,
) -> None:
    """Start a run on a federation, and watch it; after a restart, go on with it.

    Examples:

        sottovoce deploy submit mine.toml --admin kits/admin
        sottovoce deploy submit mine.toml --admin kits/admin --run mine-1a2b3c4d

    With --run, it goes on from what the sites have stored.
    """
    _needed()
    from sottovoce.deploy.order import Order
    from sottovoce.deploy.poc import new_name, submitted
    from sottovoce.deploy.policy import require_own_tables
    from sottovoce.experiments.runfile import RunFile

    runfile = RunFile.load(file, set_ or ())
    say_replaced(runfile.replaced)
    order = Order(runfile.text, run or new_name(runfile.title))
    require_own_tables(order.case()[1])  # what no site agrees to is refused before anybody is asked
    with _session(admin) as session:
        if running := session.running():
            raise ValueError(
                f"{running[0]['name']} runs: a second run would be charged as one more. Watch it with `deploy status`, "
                "or stop it with `deploy stop`"
            )
        say(f"the run is called {order.run}")
        remedy = (
            f"A run that was submitted goes on without you. To see it: sottovoce deploy status --admin {admin}. To "
            f"stop it: sottovoce deploy stop --admin {admin}. To go on after that: submit again, with --run {order.run}"
        )
        with stoppable(remedy):
            submitted(order, session, admin / "jobs" / order.run, say)
        if json:
            print_json({"run": order.run, "ended": True})


@app.command()
def status(admin: Admin, json: Json = False) -> None:
    """Show who is connected, how far each site of a running job is, and whom it waits for.

    sottovoce deploy status --admin kits/admin
    """
    _needed()
    from sottovoce.deploy.federation import RUNS
    from sottovoce.deploy.poc import doing, in_words

    with _session(admin) as session:
        connected, jobs = session.connected(), session.jobs()
        where = {str(job["job_id"]): session.where(str(job["job_id"])) for job in jobs if job["status"] == RUNS}
    if json:
        told = [{**job, "sites": where.get(str(job["job_id"]), {})} for job in jobs]
        return print_json({"connected": connected, "jobs": told})
    print_line(f"connected: {', '.join(connected) or 'nobody'}")
    for job in jobs:
        print_line(f"{job['name']}: {doing(job, connected)}")
        for name, said in where.get(str(job["job_id"]), {}).items():
            since = f" for {time.time() - said['since']:.0f} s" if said.get("since") else ""
            print_line(f"  {name}: {in_words(said)}{since}")


@app.command()
def stop(admin: Admin, json: Json = False) -> None:
    """Stop all running jobs; the sites keep what they have stored, and `submit --run NAME` goes on.

    sottovoce deploy stop --admin kits/admin
    """
    _needed()
    with _session(admin) as session:
        running = session.running()
        for job in running:
            session.stop(str(job["job_id"]))
            if not json:
                print_line(f"stopped {job['name']}")
        if json:
            print_json({"stopped": [job["name"] for job in running]})
        elif not running:
            print_line("nothing runs")


@app.command()
def fingerprint(kit: Kit, json: Json = False) -> None:
    """Print the fingerprint of a site's certificate, for the other sites' policies.

    sottovoce deploy fingerprint kits/north
    """
    _needed()
    from sottovoce.deploy.engine import address
    from sottovoce.deploy.tunnel import IDENTITY
    from sottovoce.deploy.tunnel import fingerprint as of

    address(kit, ["client"])  # refuse other kits
    found = of(kit / IDENTITY / "site.crt")
    if json:
        print_json({"site": kit.name, "fingerprint": found})
    else:
        print_line(found)


def _session(admin: Path) -> "closing[Administrator]":
    """Open a session with the server; say at once if nobody is there."""
    from sottovoce.deploy.engine import address
    from sottovoce.deploy.federation import Administrator, unreached

    if why := unreached(*address(admin, ["admin"])):
        raise ValueError(why)
    return closing(Administrator(admin))


def _say_as_json(line: str) -> None:
    """Print a line of a site as one JSON document."""
    print(dumps({"time": datetime.now(UTC).isoformat(timespec="seconds"), "said": line}), flush=True)


def _last(kit: Path) -> str:
    """Return the last line that a process printed."""
    lines = (kit / "console.log").read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "none")


def _needed() -> None:
    """Say what to install, if FLARE is not there; end as after Ctrl-C when the system asks, or the terminal closes."""
    import importlib.util
    import signal

    def interrupt(*_: object) -> None:
        _ASKED_TO_END.set()  # an exception may be lost where Python calls back, as in a garbage collection
        raise KeyboardInterrupt

    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, interrupt)

    if importlib.util.find_spec("nvflare") is None:
        raise ValueError("a federation needs NVIDIA FLARE: pip install 'sottovoce[deploy]'")
