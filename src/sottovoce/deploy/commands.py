"""Define ``sottovoce deploy``: a federation across organisations, on NVIDIA FLARE.

Slow imports stay inside the commands, so that the help text appears at once.
"""

import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from sottovoce.commands import RunFilePath, Set, console, say, say_replaced, stoppable

_HELP = """Run across organisations: each party in its own place, with its own data, ledger and veto.

**Try it on this machine**

    sottovoce deploy poc FILE.toml              a server and a process per site, one command

**For real** (docs/deploy.md is the guide)

    sottovoce deploy provision FILE.toml --host relay.example.org     certificates for everybody
    sottovoce deploy site kits/server                                 at the relay
    sottovoce deploy site kits/north                                  at each site, after editing its policy.toml
    sottovoce deploy submit FILE.toml --admin kits/admin              start the run, and watch it
    sottovoce deploy status --admin kits/admin                        who is where, and why a round waits
    sottovoce deploy stop --admin kits/admin                          stop it; what is stored stays

The run file needs a table [deploy] with the names of the sites. Install with: pip install 'sottovoce[deploy]'
"""
app = typer.Typer(help=_HELP, rich_markup_mode="markdown", no_args_is_help=True)
Kit = Annotated[Path, typer.Argument(metavar="KIT", help="the folder of a kit")]
Admin = Annotated[Path, typer.Option("--admin", metavar="KIT", help="the administrator's kit")]


@app.command()
def poc(
    file: RunFilePath,
    set_: Set = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="[default: deployed/NAME]")] = None,
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
    for report in sorted(made.glob("*/runs/*/report.html")):
        console.print(f"Report: {escape(str(report))}", highlight=False, soft_wrap=True)


@app.command()
def provision(
    file: RunFilePath,
    host: Annotated[str, typer.Option("--host", help="the server's name, as all sites reach it")],
    port: Annotated[int, typer.Option("--port", help="the one port that the server opens")] = 8002,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="where the kits go")] = Path("kits"),
) -> None:
    """Make certificates and settings for the server, each site of [deploy], and the administrator.

    sottovoce deploy provision mine.toml --host relay.example.org

    Send each kit to its owner by a safe way. Each site's owner reads and edits policy.toml in it: nothing runs that it
    does not agree to.
    """
    _needed()
    from sottovoce.deploy import kits
    from sottovoce.deploy.party import Order
    from sottovoce.deploy.poc import agree
    from sottovoce.experiments.runfile import RunFile

    order = Order(RunFile.load(file).text, "")
    sites = order.case()[2].sites
    kits.provision(sites, host, port, out)
    agree(order, out)
    for name in (kits.SERVER, *sites, "admin"):
        console.print(f"{out / name}", highlight=False)
    say("Each site: read and edit policy.toml before you start. Keys are secret: send kits safely.")


@app.command()
def site(kit: Kit) -> None:
    """Run a site, or the server, from its kit, until Ctrl-C; it is started again if it dies.

    sottovoce deploy site kits/north
    """
    _needed()
    from sottovoce.deploy.federation import end, start
    from sottovoce.deploy.policy import Policy

    server = (kit / "startup" / "fed_server.json").exists()
    if not server:
        if not (kit / "startup" / "fed_client.json").exists():
            raise ValueError(f"{kit} is no kit of a site or a server: `sottovoce deploy provision` makes them")
        policy = Policy.load(kit / "policy.toml")
        say(f"agrees to {', '.join(policy.methods)} up to epsilon {policy.epsilon:g}, with {', '.join(policy.peers)}")
    say(f"{kit.name} runs; what it prints is in {kit / 'console.log'}. Ctrl-C ends it")
    process = start(kit, server)
    try:
        while True:
            if process.poll() is not None:
                say(f"{kit.name} has ended ({process.returncode}): starting it again")
                time.sleep(2.0)
                process = start(kit, server)
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
) -> None:
    """Start a run on a federation, and watch it; after a restart, go on with it.

    sottovoce deploy submit mine.toml --admin kits/admin
    sottovoce deploy submit mine.toml --admin kits/admin --run mine-1a2b3c4d       # go on from the sites' checkpoints
    """
    _needed()
    from sottovoce.deploy.federation import Administrator
    from sottovoce.deploy.party import Order
    from sottovoce.deploy.poc import new_name, submitted
    from sottovoce.experiments.runfile import RunFile

    runfile = RunFile.load(file, set_ or ())
    say_replaced(runfile.replaced)
    order = Order(runfile.text, run or new_name(runfile.title))
    say(f"the run is called {order.run}")
    remedy = f"The run goes on without you. To stop it: sottovoce deploy stop --admin {admin}"
    with closing(Administrator(admin)) as session, stoppable(remedy):
        submitted(order, session, admin / "jobs" / order.run, say)


@app.command()
def status(admin: Admin) -> None:
    """Show who is connected, how far each site of a running job is, and whom it waits for.

    sottovoce deploy status --admin kits/admin
    """
    _needed()
    from sottovoce.deploy.federation import Administrator
    from sottovoce.deploy.poc import in_words

    with closing(Administrator(admin)) as session:
        console.print(f"connected: {', '.join(session.connected()) or 'nobody'}", highlight=False)
        for job in session.jobs():
            console.print(f"{escape(str(job['name']))}: {job['status']}", highlight=False)
            if str(job["status"]).startswith("RUNNING"):
                for name, said in session.where(str(job["job_id"])).items():
                    since = f" since {time.time() - said['since']:.0f} s" if said.get("since") else ""
                    console.print(f"  {name}: {in_words(said)}{since}", highlight=False)


@app.command()
def stop(admin: Admin) -> None:
    """Stop all running jobs; the sites keep what they have stored, and `submit --run NAME` goes on.

    sottovoce deploy stop --admin kits/admin
    """
    _needed()
    from sottovoce.deploy.federation import Administrator

    with closing(Administrator(admin)) as session:
        for job in session.jobs():
            if not str(job["status"]).startswith("FINISHED"):
                session.abort(str(job["job_id"]))
                console.print(f"stopped {escape(str(job['name']))}", highlight=False)


@app.command()
def fingerprint(kit: Kit) -> None:
    """Print the fingerprint of a site's certificate, for the other sites' policies.

    sottovoce deploy fingerprint kits/north
    """
    from sottovoce.deploy.tunnel import fingerprint as of

    console.print(of(kit / "startup" / "client.crt"), highlight=False)


def _needed() -> None:
    """Say what to install, if FLARE is not there; and end like after Ctrl-C when the system asks for it (SIGTERM)."""
    import importlib.util
    import signal

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)

    if importlib.util.find_spec("nvflare") is None:
        raise ValueError("a federation needs NVIDIA FLARE: pip install 'sottovoce[deploy]'")
