"""What FLARE's participants get from a site or a server that we have started: a federation of two sites, attacked."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from nvflare.fuel.f3.cellnet.net_agent import NetAgent
from nvflare.fuel.f3.cellnet.net_manager import NetManager
from nvflare.fuel.hci.client import api
from nvflare.private.fed.server.server_cmd_modules import ServerCommandModules

from sottovoce.deploy import confine, engine, job, kits
from sottovoce.deploy.federation import Administrator, Federation, end, start
from sottovoce.deploy.incoming import ASKED, COMMANDS
from sottovoce.deploy.poc import await_sites, free_port
from tests.deploy import hostile

SECRET = "age,death\n61,1\n"
SITES = ["north", "south"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Kits of two sites, which allow the classes of an intruder, as if it had taken over FLARE's process of a job."""
    folder = kits.provision(SITES, "localhost", free_port(), tmp_path_factory.mktemp("strangers") / "kits")
    for name in (*SITES, "server"):
        inside = engine.network(folder / name)
        shutil.copy(hostile.__file__, inside / "hostile.py")
        path = inside / "local" / "resources.json"
        settings = json.loads(path.read_text())
        settings["class_allow_list"] += ["hostile.AtSite", "hostile.AtServer"]
        path.write_text(json.dumps(settings))
    for site in SITES:
        for name in ("table.csv", "ledger.jsonl", "policy.toml"):
            (folder / site / name).write_text(SECRET)
        (folder / site / "runs").mkdir()
    kits._keep_private(folder)
    return folder


@pytest.fixture(scope="module")
def running(made):
    """The server and both sites, which can import the intruder from their own folders."""
    where = os.pathsep.join(str(engine.network(made / name)) for name in (*SITES, "server"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), where]))
        with Federation(made, SITES) as federation:
            admin = Administrator(made / "admin")
            await_sites(admin, SITES, federation.revive)
            yield federation, admin
            admin.close()


@pytest.fixture(scope="module")
def found(running, made, tmp_path_factory):
    """What an intruder in FLARE's process of a job at north has found."""
    folder = job.write(tmp_path_factory.mktemp("job"), "", "intruder", SITES)
    ours = [running[0].processes["north"].pid, os.getpid()]
    beside = f"{secrets.token_hex(8)}.socket"
    given = {"kit": str(made / "north"), "ours": ours, "beside": f"/tmp/{beside}"}
    for name, path, arguments in (("server", "hostile.AtServer", {}), ("client", "hostile.AtSite", given)):
        file = folder / "app" / "config" / f"config_fed_{name}.json"
        settings = json.loads(file.read_text())
        settings["components"][0] |= {"path": path, "args": arguments}
        file.write_text(json.dumps(settings))
    admin, file = running[1], made / "north" / engine.NETWORK / "found.json"
    with socket.socket(socket.AF_UNIX) as plain, socket.socket(socket.AF_UNIX) as abstract:
        for one, name in ((plain, given["beside"]), (abstract, "\0" + given["beside"])):
            one.bind(name)
            one.listen()
        number, deadline = admin.submit(folder), time.monotonic() + 240
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(1.0)
    Path(given["beside"]).unlink()
    admin.abort(number)
    return json.loads(file.read_text())


def silent(answers, but=()):
    """Nobody was told anything, but for what is named."""
    return {name: said for name, said in answers.items() if not said.startswith(hostile.NONE) and name not in but} == {}


def unharmed(made):
    for site in SITES:
        assert all((made / site / name).read_text() == SECRET for name in ("table.csv", "ledger.jsonl", "policy.toml"))
        assert (made / site / "runs").is_dir()


@pytest.mark.skipif(confine.landlock() < 6, reason="needs Landlock, of Linux 6.12 or later")
def test_whoever_takes_over_flares_process_opens_nothing_of_the_site(found, made):
    """Not the table, a key, the policy or the ledger; not the memory of the site's own processes; no other port."""
    here = dict(found["here"])
    assert here.pop("the line").startswith("done")
    print(json.dumps(here, indent=1))
    got = {what for what, said in here.items() if not said.startswith("refused")}
    assert got == {hostile.BESIDE, hostile.DATAGRAM}  # docs/deploy.md says so
    unharmed(made)


def test_the_line_answers_the_questions_of_a_run_alone(found):
    """An unknown question fails, a run of another form ends, a second run cannot begin, a call gets nothing."""
    told = json.loads(found["here"]["the line"].removeprefix("done: "))
    print(told)
    assert {name for name, said in told.items() if said.startswith("A")} == {"where", "a run", "south", "where at last"}
    assert told["where"] == 'A {"state": "starting"}'
    assert told["a run"] == told["south"] == "A "
    assert "failed" in told["where at last"]
    assert SECRET not in str(told)


def test_a_job_gets_an_answer_of_no_other_site_and_says_goodbye_to_the_server(found, made):
    """On every channel and topic that FLARE registers in the process of a job, and with every command of a site."""
    assert len(found["known"]) > 30
    assert silent(found["south"])
    assert silent(found["job of south"])
    assert silent(found["server"], ["cellnet.channel/bye"])
    unharmed(made)


def hostile_program(folder, *words):
    """Run an attacker's program; return the answers that it got."""
    out, said = folder / "answers.json", folder / "hostile.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, hostile.__file__, *map(str, words[:3]), str(out), *map(str, words[3:])],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd=folder,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            time.sleep(0.5)
            with suppress(FileNotFoundError, ValueError):
                return json.loads(out.read_text())
        raise TimeoutError(said.read_text()[-3000:])
    finally:
        end(process)


@pytest.mark.parametrize("target", ["north", "server"])
def test_another_site_gets_no_answer(running, made, target, tmp_path):
    """South runs FLARE's own program, uncut, and asks on every channel and topic that it knows."""
    federation, _ = running
    end(federation.processes["south"])
    answers = hostile_program(
        tmp_path,
        "site",
        made / "north",
        target,
        *engine.options(made / "south/network", "uid=south"),
    )
    assert len(answers) > 90
    heard = {name for name, said in answers.items() if not said.startswith(hostile.NONE)}
    assert heard == (set() if target == "north" else {"cellnet.channel/bye"})
    unharmed(made)
    federation.revive()


def test_an_administrator_gets_no_answer_of_a_site_and_few_of_the_server(running, made, monkeypatch):
    """Its session is FLARE's own. Commands of the server that nobody needs are not there."""
    federation, admin = running
    await_sites(admin, SITES, federation.revive)
    monkeypatch.setattr(api, "validate_auth_headers", lambda message, **how: None)
    session = admin._session.api
    answers = hostile.asked(session.cell, "north", made / "north")
    assert silent(answers)
    for module in (*ServerCommandModules.cmd_modules, NetManager(NetAgent(session.cell))):
        for command in module.get_spec().cmd_specs:
            if command.name in ASKED:
                continue
            said = str(session.server_execute(f"{command.name} server startup/server.key"))
            assert f'Unknown command "{command.name}"' in said, said
    unharmed(made)


def test_a_user_of_the_machine_without_a_kit_gets_no_answer(running, made, tmp_path):
    """The port that FLARE opens for its own jobs asks for a certificate."""
    settings = json.loads((made / "north" / engine.NETWORK / "local" / engine.COMM).read_text())
    answers = hostile_program(tmp_path, "local", settings["internal"]["resources"]["port"], "north")
    assert set(answers.values()) == {hostile.NONE}  # no error of its own


def test_code_of_an_administrator_runs_nowhere(running, made, tmp_path):
    """A job that brings code is refused by the sites, and by the server."""
    federation, admin = running
    for place in ("server", "north"):
        folder = job.write(tmp_path / place, "", f"code-{place}", SITES)
        (folder / "app").rename(folder / "clean")
        shutil.copytree(folder / "clean", folder / "evil")
        (folder / "evil" / "custom").mkdir()
        proof = made / engine.network(made / place) / "proof.txt"
        (folder / "evil" / "custom" / "evil.py").write_text(f"open({str(proof)!r}, 'w').write('ran')")
        others = [name for name in ("server", *SITES) if name != place]
        meta = json.loads((folder / "meta.json").read_text())
        meta["deploy_map"] = {"evil": [place], "clean": others}
        (folder / "meta.json").write_text(json.dumps(meta))
        for file in (folder / "evil" / "config").glob("config_fed_*.json"):
            settings = json.loads(file.read_text())
            settings["components"] = [{"id": "evil", "path": "evil.Evil", "args": {}}]
            file.write_text(json.dumps(settings))
        await_sites(admin, SITES, federation.revive)
        number, deadline = admin.submit(folder), time.monotonic() + 60
        while not (status := admin.status(number)).startswith("FINISHED") and time.monotonic() < deadline:
            time.sleep(0.5)
        told = str(admin._do(lambda session, number=number: session.get_job_meta(number)))
        admin.abort(number)
        print(place, status, told[-400:])
        assert not proof.exists()
        assert "BYOC" in told or "byoc" in told


def test_a_relay_gets_of_a_site_what_a_run_needs_and_no_file(running, made, tmp_path):
    """FLARE's own server, uncut: it may ask for a job, of one form, and nothing else."""
    federation, _ = running
    for name in ("south", "server"):
        end(federation.processes[name])
    answers = hostile_program(tmp_path, "server", made / "north", "north", *engine.options(made / "server"))
    heard = {name: said for name, said in answers.items() if not said.startswith(hostile.NONE)}
    print(json.dumps(heard, indent=1))
    assert {name.split()[0] for name in heard} <= {"command", "admin/*", "cellnet.channel/bye"}
    commands = [(name.split()[1], said) for name, said in heard.items() if name.startswith("command")]
    assert {topic for topic, said in commands if "invalid_request" not in said} == COMMANDS
    assert all("another form" in said for topic, said in commands if topic in COMMANDS)
    assert len([topic for topic, _ in commands if topic == "train.deploy"]) == 3
    unharmed(made)


def test_kits_and_what_a_site_writes_are_its_owners_alone(running, made):
    for path in (made / "north", made / "server", made / "admin"):
        assert [one for one in (path, *path.rglob("*")) if one.lstat().st_mode & 0o077 and not one.is_symlink()] == []


def test_a_version_of_flare_that_nobody_looked_at_is_refused(made, monkeypatch):
    monkeypatch.setattr("nvflare.__version__", "2.9.7")
    with pytest.raises(ValueError, match=r"nvflare 2.9.7 was not tested.*pip install 'nvflare==2.9.0'"):
        start(made / "north")
