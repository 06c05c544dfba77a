"""The command, verb by verb; real trainings are in ``test_submit``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.main import get_command

from tests.factories import DONE, PYTHON
from zeusrun import __version__
from zeusrun.cli import VERBS, app


def test_without_arguments_the_verbs_are_listed(cli):
    _, out, err = cli()
    shown = [verb for verb, (_, text) in VERBS["zeusrun"].items() if text]
    assert [verb for verb in shown if verb not in out + err] == []


ALL_VERBS = [
    (*([] if group == "zeusrun" else [group]), verb) for group in VERBS for verb in VERBS[group]
]


@pytest.mark.parametrize("verb", ALL_VERBS, ids=" ".join)
def test_every_verb_has_the_help_that_its_group_says(cli, verb):
    code, out, err = cli(*verb, "--help")
    assert (code, err) == (0, "")
    assert f"zeusrun {' '.join(verb)}" in out
    place, text = VERBS["zeusrun" if len(verb) == 1 else verb[0]][verb[-1]]
    assert text in " ".join(out.split())
    module = place.rpartition(".")[0]
    package = "zeusrun" if "." in module else "zeusrun.commands"
    assert f"{package}.{module}" in sys.modules


def test_verbs_without_a_help_text_are_hidden(cli):
    listed = cli("schedule", "--help")[1]
    hidden = [verb for verb, (_, text) in VERBS["schedule"].items() if not text]
    assert hidden == ["tick", "fire"]
    assert [verb for verb in hidden if f"  {verb} " in listed] == []


@pytest.mark.parametrize(
    ("arguments", "meant"), [(["histry"], "history"), (["schedule", "pase"], "pause")]
)
def test_a_misspelt_verb_is_told_from_those_that_there_are(cli, arguments, meant):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert f"No such command '{arguments[-1]}'" in err
    if hasattr(get_command(app), "suggest_commands"):  # since Typer 0.20
        assert f"Did you mean '{meant}'" in err


def test_a_verb_of_other_tools_is_told_from_the_one_that_is_meant(cli):
    for word, meant in (("list", "history"), ("run", "submit")):
        code, out, err = cli(word)
        assert (code, out) == (2, "")
        assert f"No such command '{word}'. Did you mean '{meant}'?" in err


COMPLETED = """
import sys
from typer.main import get_command
from zeusrun.cli import app

root = get_command(app)
context = root.make_context("zeusrun", sys.argv[1:-1], resilient_parsing=True)
name, command, rest = root.resolve_command(context, sys.argv[1:-1]) if sys.argv[2:] else (0, root, 0)
context = command.make_context(name, rest, parent=context, resilient_parsing=True) if name else context
print(*(found.value for found in command.shell_complete(context, sys.argv[-1])))
print(*sorted(name for name in sys.modules if name.startswith("zeusrun.commands.")))
"""


@pytest.mark.parametrize(
    ("typed", "found", "imported"),
    [
        (["s"], "submit show status schema scale simulate serve schedule", ""),
        (["schedule", "r"], "resume remove run-now", ""),
        (["schema", "--h"], "--help", "zeusrun.commands.job zeusrun.commands.options"),
    ],
)
def test_completion_imports_the_verb_alone_whose_options_it_completes(
    zeusrun, typed, found, imported
):
    done = subprocess.run(
        [sys.executable, "-c", COMPLETED, *typed],
        env=zeusrun.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [found, imported]


def test_the_version_is_printed(cli):
    assert cli("--version") == (0, f"zeusrun {__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nonsense"],
        ["nonsense"],
        ["submit"],
        ["submit", "job.yaml", "--nonsense"],
        ["submit", "job.yaml", "--batch-size", "many"],
        ["history", "--last", "0"],
        ["logs", "job-1-1", "--rank", "-1"],
        ["show"],
    ],
    ids=" ".join,
)
def test_bad_usage_is_exit_2_and_says_so(cli, arguments):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert "Usage: " in err


@pytest.mark.parametrize("columns", ["80", "100"])
def test_no_help_is_cut_short(cli, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    for arguments in ([], ["doctor"], ["schedule"], ["history"], ["submit"]):
        assert "..." not in cli(*arguments, "--help")[1].replace("[ARGS]...", "")


def test_a_home_that_no_user_has_is_exit_6_and_says_what_to_set(cli, monkeypatch):
    monkeypatch.setenv("ZEUSRUN_HOME", "~nobody-of-that-name/zeusrun")
    code, _, err = cli("history")
    assert code == 6
    assert "set ZEUSRUN_HOME" in err


def run_program(zeusrun, program, *arguments, **streams):
    lines = [program, "import sys", "sys.argv[0] = 'zeusrun'", "zeusrun.cli.main()"]
    return subprocess.run(
        [sys.executable, "-c", "import zeusrun.cli\n" + "\n".join(lines), *map(str, arguments)],
        cwd=zeusrun.folder,
        env={**zeusrun.environment, "TMPDIR": str(zeusrun.folder)},
        text=True,
        check=False,
        **(streams or {"capture_output": True}),
    )


BROKEN = (
    "import zeusrun.history.tinydb.store as room\n"
    "def broken(*_):\n    raise ArithmeticError('a bug of ours')\n"
    "room.TinyDBHistory.jobs = broken"
)


def test_a_bug_is_exit_1_one_paragraph_and_a_traceback_in_a_file(zeusrun):
    done = run_program(zeusrun, BROKEN, "history")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "ArithmeticError: a bug of ours" in done.stderr
    assert "please report" in done.stderr
    (kept,) = zeusrun.folder.glob("zeusrun-bug-*.txt")
    assert str(kept) in done.stderr
    assert "Traceback" in kept.read_text()


def test_a_bug_may_quote_a_file_name_that_is_not_utf_8(zeusrun):
    quoting = BROKEN.replace("'a bug of ours'", r"'caf\udce9'")
    done = run_program(zeusrun, quoting, "history")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    (kept,) = zeusrun.folder.glob("zeusrun-bug-*.txt")
    assert r"caf\udce9" in kept.read_text()


def test_an_error_is_one_paragraph_without_a_traceback(zeusrun):
    done = zeusrun("submit", zeusrun.folder / "nothing.yaml")
    assert done.returncode == 2
    assert done.stderr.startswith("zeusrun: ")
    assert "nothing.yaml" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [["history"], ["history", "--json"], ["history", "--csv"], ["logs", "job-1-1"], ["schema"]],
    ids=" ".join,
)
def test_a_reader_that_has_gone_is_no_error(zeusrun, record, arguments):
    logged = record(1)
    (Path(logged.run_dir) / "logs" / "rank0.log").write_text("line\n" * 1000)
    reader, writer = os.pipe()
    os.close(reader)
    streams = {"stdout": writer, "stderr": subprocess.PIPE}
    done = run_program(zeusrun, "", *arguments, **streams)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_training_outlives_whoever_watched_it(zeusrun):
    reader, writer = os.pipe()
    os.close(reader)
    job = zeusrun.job(args=["--see"])
    done = run_program(zeusrun, "", "submit", job, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
    assert [found["status"] for found in zeusrun.history()] == ["REACHED"]


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_training_needs_no_streams(zeusrun, closed):
    """As under a service manager that closes them: Python then has ``None`` in their place."""
    program = f"import sys\nsys.{closed} = None"
    options = ["--json"] if closed == "stderr" else []
    done = run_program(zeusrun, program, "submit", zeusrun.job(), *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert (done.stdout == "") == (closed == "stdout")
    assert done.stdout.count("\n") == len(options)
    assert [found["status"] for found in zeusrun.history()] == ["REACHED"]


@pytest.mark.parametrize(
    ("sink", "arguments"), [("/dev/full", ["--json"]), (None, [])], ids=["full disk", "closed pipe"]
)
def test_who_does_not_read_what_was_saved_does_not_change_how_a_submit_ends(
    zeusrun, arguments, sink
):
    reader, writer = os.pipe()
    os.close(reader)
    program = f"""
import os
import zeusrun.view.tables
def lines(*_):
    os.dup2({writer if sink is None else f"os.open({sink!r}, os.O_WRONLY)"}, {1 + len(arguments)})
    return ["saved"] * 2
zeusrun.view.tables.savings_block = lines
"""
    job = zeusrun.job(args=["--gain", "0"], attempts=1)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "pass_fds": [writer]}
    done = run_program(zeusrun, program, "submit", job, *arguments, **streams)
    os.close(writer)
    assert done.returncode == 4
    if arguments:
        assert json.loads(done.stdout)["exit_code"] == 4


def test_history_piped_into_head(zeusrun, record):
    for recurrence in range(1, 40):
        record(recurrence, replace(DONE, reason="a long reason " * 400))
    command = f"{PYTHON} -m zeusrun history --json | head -c 10; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], env=zeusrun.environment, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b'[{"trial":', b"")


def test_output_that_a_terminal_cannot_show_is_replaced(zeusrun, record):
    record(1, None)
    done = subprocess.run(
        zeusrun.argv("history"),
        env={**zeusrun.environment, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"DEAD" in done.stdout


@pytest.mark.parametrize(("number", "code"), [("SIGUSR1", 75), ("SIGINT", 130)])
def test_a_signal_that_comes_while_a_submit_still_imports_ends_it_before_it_begins(
    zeusrun, number, code
):
    program = f"""
import runpy, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            signal.raise_signal(signal.{number})
sys.meta_path.insert(0, Finder())
sys.argv = ["zeusrun", "submit", {str(zeusrun.job())!r}]
runpy.run_module("zeusrun", run_name="__main__")
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, env=zeusrun.environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"zeusrun: job: ended by {number} before it began\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "zeusrun: there is not enough memory for zeusrun itself"),
        (OSError(28, "No space left on device", "/x"), "zeusrun: /x: No space left on device; "),
    ],
)
def test_a_shortage_is_no_bug(cli, monkeypatch, error, said):
    def fail():
        raise error

    monkeypatch.setattr("zeusrun.cli._command", fail)
    code, _, err = cli("history")
    assert (code, err.startswith(said)) == (5, True)


def test_a_second_signal_ends_a_submit_whose_job_file_is_never_read(zeusrun):
    job = zeusrun.folder / "never.yaml"
    os.mkfifo(job)
    child = zeusrun.start("submit", str(job))
    held = os.open(job, os.O_WRONLY)  # once it reads
    while child.poll() is None:
        child.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    os.close(held)
    assert child.wait() == -signal.SIGTERM
