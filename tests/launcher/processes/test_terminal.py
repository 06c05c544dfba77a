"""The standard input of a rank where zeusrun is started in a terminal: a real one, by ``pty``."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from tests.forks import TIMEOUT_S

IN_TERMINAL = """
import os, pty, sys
sys.exit(os.waitstatus_to_exitcode(pty.spawn(["bash", "-c", "stty rows 33 cols 123;" + sys.argv[1]])))
"""
ASKS = """
import os, shutil, subprocess
print(os.isatty(0), subprocess.run(["stty", "size"], stdout=subprocess.PIPE, text=True).stdout.strip())
print(*os.get_terminal_size(), *shutil.get_terminal_size((1, 1)), os.isatty(1))
try:
    print(repr(input("go on? ")))
except OSError as error:
    print(error)
"""
SIZE = "True 33 123\n115 33 115 33 False\n"  # less "[rank0] "


@pytest.fixture
def submit(zeusrun):
    """Submit a script in a terminal; return the rank's log and what the user sees."""

    def run(script, line="exec {}", **changes):
        (zeusrun.folder / "asks.py").write_text(script)
        job = zeusrun.job("asks.py", attempts=1, **changes)
        command = shlex.join(zeusrun.argv("submit", job))
        kept = {k: v for k, v in zeusrun.environment.items() if k != "COLUMNS"}
        done = subprocess.run(
            [sys.executable, "-c", IN_TERMINAL, line.format(command)],
            cwd=zeusrun.folder,
            env=kept,
            input="yes\n",
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert not done.stderr
        return (zeusrun.run_dir() / "logs" / "rank0.log").read_text(), done.stdout

    return run


@pytest.mark.torchrun
def test_a_single_rank_has_the_size_and_the_keys_of_the_terminal(submit):
    log, seen = submit(ASKS)
    assert log == f"{SIZE}go on? \n'yes'\n"
    assert "[rank0] go on?" in seen


def test_in_the_background_it_takes_no_keys_from_the_shell(submit):
    log, seen = submit(ASKS, "set -m; {} & wait; read key; echo the shell got $key")
    assert log == f"{SIZE}go on? \n[Errno 9] Bad file descriptor\n"
    assert "the shell got yes" in seen


@pytest.mark.long  # a submit on a terminal
def test_without_instrumentation_standard_input_is_the_terminal_too(submit):
    asks = (
        "import os, subprocess; print(os.isatty(0), flush=True); subprocess.run(['stty', 'size'])"
    )
    assert submit(asks, instrument=False)[0] == "True\n33 123\n"


@pytest.mark.long  # a submit on a terminal
def test_of_several_ranks_none_has_the_terminal(submit):
    log, _ = submit("import sys; print(repr(sys.stdin.read()))", launch={"nproc_per_node": 2})
    assert log == "''\n"


def test_the_terminal_is_left_to_others_once_the_run_has_ended(submit):
    """The watchdog lives on while the launcher does; it must not hold the terminal open."""
    held = """
    import os
    watchdog = os.getppid()
    while b"watchdog.py" not in open(f"/proc/{watchdog}/cmdline", "rb").read():
        watchdog = int(open(f"/proc/{watchdog}/stat").read().rpartition(")")[2].split()[1])
    files = {os.readlink(f"/proc/{watchdog}/fd/{fd}") for fd in os.listdir(f"/proc/{watchdog}/fd")}
    print(os.ttyname(0) in files)
    """
    assert submit("\n".join(line[4:] for line in held.splitlines()))[0] == "False\n"


ASKS_FOR_SIZE = (
    "import os\n_, width = os.popen('stty size', 'r').read().split()",
    "import os\nsize = os.popen('stty size', 'r').read()\nrows, columns = size.split()",
    "import os\ncolumns = os.get_terminal_size().columns",
)


@pytest.mark.parametrize(
    ("script", "instrument"), [*((each, True) for each in ASKS_FOR_SIZE), (ASKS_FOR_SIZE[1], False)]
)
def test_without_a_terminal_the_reason_says_what_the_script_lacks(zeusrun, script, instrument):
    (zeusrun.folder / "asks.py").write_text(script)
    job = zeusrun.job("asks.py", attempts=1, instrument=instrument)
    code, result, _ = zeusrun.submit(job)
    (trial,) = result["trials"]
    assert code == 3
    assert "the script asks for the size of a terminal; it has one only as" in trial["reason"]
    assert trial["reason"].endswith("/dev/null  which makes one")


def test_a_script_that_fails_otherwise_is_told_nothing_of_terminals(zeusrun):
    text = "import os\nos.system('stty size')\nfor _ in range(9): print('going on')\n1 / 0\n"
    (zeusrun.folder / "asks.py").write_text(text)
    _, result, _ = zeusrun.submit(zeusrun.job("asks.py", attempts=1))
    (trial,) = result["trials"]
    assert trial["reason"].endswith("ZeroDivisionError: division by zero")
