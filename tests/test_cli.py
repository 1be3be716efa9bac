"""The command line: what it prints, what it says when something is wrong, and its exit codes."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import sottovoce
from sottovoce import cli
from sottovoce.commands import audit
from sottovoce.reports.comparison import Comparison, Outcome, Row
from tests.experiments.conftest import TINY


@pytest.fixture
def tiny_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.toml"
    path.write_text(TINY)
    return path


def command(capsys, monkeypatch, *words):
    """Exit code, standard output and standard error of a whole command."""
    monkeypatch.setattr(sys, "argv", ["sottovoce", *map(str, words)])
    monkeypatch.setattr(cli.console, "_width", 200)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capsys.readouterr()
    return ended.value.code or 0, told.out, told.err


def test_the_package_runs_as_a_module(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sottovoce", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("sottovoce", run_name="__main__")
    assert not ended.value.code
    assert "Start here" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [[], ["demo"], ["run"], ["account"], ["calibrate"], ["reproduce"], ["report"], ["list"]]
)
def test_every_command_has_help(words):
    ended = CliRunner().invoke(cli.app, [*words, "--help"])
    assert ended.exit_code == 0
    assert "Usage" in ended.output


def commands(group, path=()):
    """Every command with its path of words, those of groups too."""
    for name, one in group.commands.items():
        yield from commands(one, (*path, name)) if hasattr(one, "commands") else [((*path, name), one)]


def test_examples_in_a_help_text_stand_on_lines_of_their_own():
    """Markdown joins lines and reads # as a heading, unless a block of examples stands between two paragraphs."""
    found = dict(commands(typer.main.get_command(cli.app)))
    for path, one in found.items():
        examples = [line.strip() for line in (one.help or "").splitlines() if line.strip().startswith("sottovoce ")]
        shown = CliRunner().invoke(cli.app, [*path, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).output
        lines = [line.strip() for line in shown.splitlines()]
        assert [line for line in examples if line not in lines] == [], path


def test_every_command_answers_as_json():
    found = dict(commands(typer.main.get_command(cli.app)))
    assert {("demo",), ("ledger", "show"), ("deploy", "status")} <= found.keys()
    assert [path for path, one in found.items() if not any("--json" in option.opts for option in one.params)] == []


@pytest.fixture
def told(capsys, monkeypatch):
    """What a command prints with --json."""

    def run(*words):
        code, out, _ = command(capsys, monkeypatch, *words, "--json")
        assert code == 0
        return json.loads(out)

    return run


def test_json_is_one_document_on_standard_output(told, tiny_file):
    checked = told("check", tiny_file)
    (name,) = checked["variants"]
    assert checked["runs"] == 1
    account = told("account", tiny_file)[name]
    assert account["epsilon"] == checked["variants"][name]["epsilon"]
    assert account["technical"][0].startswith("noise_multiplier ")
    assert account["dp_event"].startswith(("SelfComposed", "Composed", "Poisson", "Gaussian"))
    assert told("calibrate", tiny_file)["releases"][0]["noise at first"] > 0
    assert "DpSgd" in told("list")["Methods"]


@pytest.mark.slow
def test_json_of_a_run_its_report_ledger_and_audit_agree(told, tiny_file):
    ((name, account),) = told("account", tiny_file).items()
    ran = told("run", tiny_file)
    row = ran["rows"][name]["2. The Differential Privacy Guarantee"]["2.2. The Privacy Parameter ε"]
    assert row["epsilon"] == account["epsilon"]
    assert told("report", "runs/mine") == ran
    (path,) = tiny_file.parent.glob("runs/mine/*/0/ledger.jsonl")
    (ledger,) = told("ledger", "show", path, "--adjacency", account["adjacency"])["ledgers"].values()
    assert max(ledger["epsilon by party"].values()) == pytest.approx(account["epsilon"], rel=1e-3)
    assert told("audit", tiny_file, "--trials", "200")[name]["passed"] is True


def test_help_needs_no_heavy_import():
    code = "import sys, sottovoce.cli; sys.exit(any(name in sys.modules for name in ('jax', 'scipy', 'matplotlib')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_is_found():
    assert all(hasattr(sottovoce, name) for name in sottovoce.__all__)
    with pytest.raises(AttributeError, match="there is no name in sottovoce 'nonsense'"):
        _ = sottovoce.nonsense


def test_a_run_does_not_wait_for_statistics_and_audit_stays_the_function_when_its_room_is_imported():
    code = """
import sys, sottovoce as sv
sv.run, sv.methods.DpSgd
assert "scipy.stats" not in sys.modules  # a second or two to load
import sottovoce.audit.bounds
from sottovoce.audit import audit
assert sv.audit is audit
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_help_of_run_shows_a_whole_file():
    shown = CliRunner().invoke(cli.app, ["run", "--help"]).output
    for word in ("[data]", "[method]", "[[variant]]", "[quick]", "[[printed]]", "privacy.epsilon = 4.0"):
        assert word in shown


def test_run_then_report(capsys, monkeypatch, tiny_file):
    code, out, _ = command(capsys, monkeypatch, "run", tiny_file, "--set", "run.steps=2")
    assert code == 0
    assert re.search(r"DpSgd +0\.\d{4} +0\.\d{4} +3 ", out)
    assert "Epsilon is at delta 1e-05, per record, replace-one adjacency, sound design." in out
    assert (tiny_file.parent / "runs" / "mine" / "report.html").is_file()
    code, again, _ = command(capsys, monkeypatch, "report", "runs/mine")
    assert code == 0
    assert again.splitlines()[:3] == out.splitlines()[:3]
    code, _, err = command(capsys, monkeypatch, "run", tiny_file, "--set", "run.steps=2")
    assert (code, "--resume" in err) == (2, True)
    code, out, _ = command(capsys, monkeypatch, "run", tiny_file, "--set", "run.steps=2", "--resume")
    assert code == 0


def test_account_says_how_epsilon_was_found(capsys, monkeypatch, tiny_file):
    code, out, _ = command(capsys, monkeypatch, "account", tiny_file)
    assert code == 0
    for words in ("highest", "sottovoce 0.1.0", "gradient: gaussian noise", "replace-one adjacency", "sound", "note"):
        assert words in out


def test_calibrate_writes_a_file_that_needs_no_epsilon(capsys, monkeypatch, tiny_file):
    code, out, _ = command(capsys, monkeypatch, "calibrate", tiny_file, "--out", "calibrated.toml")
    assert code == 0
    assert "gradient" in out
    _, before, _ = command(capsys, monkeypatch, "account", tiny_file)
    code, after, _ = command(capsys, monkeypatch, "account", "calibrated.toml")
    assert (code, after) == (0, before)
    code, _, err = command(capsys, monkeypatch, "calibrate", "calibrated.toml")
    assert (code, "--set privacy.epsilon=1" in err) == (2, True)


def test_list_names_everything(capsys, monkeypatch):
    code, out, _ = command(capsys, monkeypatch, "list")
    assert code == 0
    for name in ("DpSgd", "softmax", "digits", "Experiments"):
        assert name in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "absent.toml"], "there is no run file absent.toml"),
        (["run", "mine.toml", "--set", "method.gradient.clp=1"], "[method].gradient 'clp'; did you mean 'clip'"),
        (["run", "mine.toml", "--set", "nonsense"], "write key=value"),
        (["reproduce", "nobody/nothing"], "there is no experiment 'nobody/nothing'"),
        (["report", "."], "holds no finished run"),
        (["run", "mine.toml", "--out", "mine.toml"], "mine.toml is a file: give a folder"),
        (["calibrate", "mine.toml", "--out", "nowhere/new.toml"], "there is no folder nowhere"),
        (["ledger", "show", "nothing.jsonl"], "there is no ledger nothing.jsonl"),
    ],
)
def test_errors_are_one_line_with_exit_code_2(capsys, monkeypatch, tiny_file, words, message):
    code, _, err = command(capsys, monkeypatch, *words)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_debug_shows_where_an_error_came_from(monkeypatch, tiny_file):
    monkeypatch.setenv("SOTTOVOCE_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["sottovoce", "run", "absent.toml"])
    with pytest.raises(ValueError, match="no run file"):
        cli.main()


def test_ctrl_c_says_how_to_go_on(capsys, monkeypatch, tiny_file):
    from sottovoce.experiments import execute, planned

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(execute.together, "as_they_end", stop)
    code, _, err = command(capsys, monkeypatch, "run", tiny_file, "--out", "somewhere")
    assert code == 130
    assert "--out somewhere --resume" in err
    monkeypatch.setattr(planned, "setup", stop)  # nothing is stored yet
    code, _, err = command(capsys, monkeypatch, "run", tiny_file, "--out", "no where")
    assert "--out 'no where' --resume goes on from what is stored there, if anything is" in err


def test_audit_needs_one_thing_and_names_exhibits(capsys, monkeypatch):
    for words, message in [
        (["audit"], "one of the three"),
        (["audit", "--exhibit", "bambi-multiclas"], "did you mean 'bambi-multiclass'"),
        (["audit", "--attack", "nope"], "choose dlg"),
        (["ledger", "show", "nowhere.jsonl"], "there is no ledger"),
    ]:
        code, _, err = command(capsys, monkeypatch, *words)
        assert code == 2
        assert message in err


def test_an_exhibit_prints_claim_and_measurement(capsys, monkeypatch):
    code, out, _ = command(capsys, monkeypatch, "audit", "--exhibit", "bambi-multiclass", "--quick")
    assert code == 0
    assert "the claim is false" in out
    monkeypatch.setattr(cli.console, "_width", 80)
    audit._exhibit("bambi-multiclass", quick=True, json=False)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.slow
def test_a_run_can_be_audited_and_its_ledger_read(capsys, monkeypatch, tiny_file):
    code, _, _ = command(capsys, monkeypatch, "run", tiny_file, "--set", "run.steps=2", "--out", "run")
    assert code == 0
    ledger = next(tiny_file.parent.glob("run/*/*/ledger.jsonl"))
    code, out, _ = command(capsys, monkeypatch, "ledger", "show", ledger)
    assert code == 0
    assert "epsilon" in out
    code, out, _ = command(capsys, monkeypatch, "ledger", "show", ledger, ledger)
    assert code == 0
    assert out.count("ledger.jsonl:") == 2
    code, out, _ = command(capsys, monkeypatch, "audit", tiny_file, "--set", "run.steps=2", "--trials", "400")
    assert code == 0
    assert "claimed" in out
    options = ["--adversary", "one-run", "--runtime", "threads", "--noise", "discrete"]
    code, out, _ = command(capsys, monkeypatch, "audit", tiny_file, "--set", "run.steps=1", *options)
    assert code == 0
    assert "discrete noise" in out


DEEP = b"a" + b".a" * 5000 + b" = 1"


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (b"a = " + b"[" * 50_000, [], "nested more than 20 deep"),
        (DEEP, [], "nested more than 20 deep"),
        (TINY.encode(), ["--set", "run.steps=" + "[" * 20_000], "nested more than 20 deep"),
        (TINY.encode(), ["--set", "a" + ".a" * 5000 + "=1"], "nested more than 20 deep"),
        (b"\xff\xfe" + TINY.encode(), [], "is not UTF-8 text"),
        (b"variant = 3", [], r"variant is 3: write tables, \[\[variant"),
        (b"variant = [[1]]", [], r"variant is \[\[1\]\]: write tables"),
        (b"quick = 3", ["--quick"], r"quick is 3: write a table"),
        (b"printed = 3\n" + TINY.encode(), [], "printed is 3: write tables"),
        (TINY.encode(), ["--set", "data.seed=true"], "data.seed is True: input should be a number"),
        (TINY.encode(), ["--set", "data.dim=true"], r"\[data\].dim is True: input should be a number"),
        (TINY.encode(), ["--set", "run.seeds=[true]"], "input should be a number"),
        (TINY.encode(), ["--set", "run.steps='4'"], "run.steps is '4': input should be a number"),
        (TINY.encode(), ["--set", "compare.alone=1"], "should be a valid boolean"),
        (TINY.encode(), ["--set", "run.steps=99999999999999999999"], "less than or equal to 1000000000"),
        (TINY.encode(), ["--set", "data.dim=99999999999"], "does not fit into memory"),
        (TINY.encode(), ["--set", "data.n=1"], "give at least 10"),
    ],
)
def test_no_run_file_gives_a_traceback(capsys, monkeypatch, tiny_file, content, words, message):
    """Attack b4, and what a campaign of mutated files found (tests/soak)."""
    tiny_file.write_bytes(content)
    code, _, err = command(capsys, monkeypatch, "account", tiny_file, *words)
    assert code == 2
    assert re.match(r"(--set [^\n]*\n)*error ", err), err
    assert str(tiny_file) in err
    assert re.search(message, err), err


def test_what_may_not_be_read_or_used_is_named(capsys, monkeypatch, tiny_file, tmp_path):
    def refused(self):
        raise PermissionError(13, "Permission denied", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(type(tmp_path), "read_bytes", refused)
        assert "mine.toml cannot be read (Permission denied)" in command(capsys, monkeypatch, "run", tiny_file)[2]
    code, _, err = command(capsys, monkeypatch, "run", tiny_file, "--out", "n" * 300)
    assert (code, "File name too long): choose another path" in err) == (2, True)


def test_a_fault_of_ours_is_one_line_too(capsys, monkeypatch, tiny_file):
    def fault(*given):
        raise KeyError("privacy")

    monkeypatch.setattr("sottovoce.experiments.runfile.RunFile.load", fault)
    code, _, err = command(capsys, monkeypatch, "account", tiny_file)
    assert (code, cli.FAULT in err) == (2, True)


def test_a_run_without_figures_says_why(capsys):
    method = sottovoce.methods.DpSgd(rate=0.5, gradient=sottovoce.Release(1.0, 0.1), sampling=sottovoce.Full())
    account = sottovoce.account(method, sottovoce.Population([50]), steps=1)
    history = {"step": np.arange(2), "seconds": np.arange(2.0)}
    row = Row("DpSgd", "together", (Outcome(history, account, releasable=True),))
    cli._show(Comparison("mine", (row,)), Path("report.html"), json=False)
    assert "no held-out label fits its declaration" in capsys.readouterr().out
