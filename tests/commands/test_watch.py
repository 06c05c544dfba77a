"""``zeusrun status --watch`` in a real terminal, by ``pty``."""

from __future__ import annotations

import os
import re
import signal
import termios
from dataclasses import replace
from pathlib import Path

import pytest

from tests.commands.terminal import Terminal
from tests.factories import DONE
from tests.forks import TIMEOUT_S
from tests.gpu import fixtures
from zeusrun.launcher.rundir.layout import Live, RunPaths, write_live
from zeusrun.trial import CurvePoint

build_library, plain_library = fixtures.build_library, fixtures.plain_library
gpu_machine = fixtures.gpu_machine
WHOLE, OWN = "\x1b[?1049h", "\x1b[?1049l"  # a screen of its own begins and ends, see xterm


@pytest.fixture
def watch(zeusrun):
    """Start ``status --watch``; the terminal must be as it was when it has ended."""
    opened = []

    def start(*arguments, **env):
        argv = zeusrun.argv("status", "--watch", "--every", "0.2", *arguments)
        opened.append(Terminal(argv, {**zeusrun.environment, **env}, zeusrun.folder))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.child.kill()
        terminal.child.wait()
        after = termios.tcgetattr(terminal.ours)
        os.close(terminal.ours)
        assert after == terminal.before
        assert terminal.seen.count(WHOLE) == terminal.seen.count(OWN) <= 1


def test_it_shows_runs_gpus_schedules_and_what_waits_and_follows_them(
    zeusrun, running, watch, gpu_machine
):
    job = zeusrun.job("ignores_sigterm.py")
    assert zeusrun("schedule", "add", job, "0 2 * * *", "--no-cron").returncode == 0
    gpu_machine.set("work", 0)
    gpu_machine.set_limit_w(1, 150)
    terminal = watch(**gpu_machine.environment)
    screen = terminal.wait_for("nothing runs now", "250 W", "400 W", "sw power cap")
    assert re.fullmatch(r"zeusrun status · .* · q ends it", screen[0])
    (row,) = [line for line in screen if line.endswith("job  at 02:00 every day")]
    assert re.match(r"\w{3} \d\d \w{3} 02:00 ", row)
    assert len(screen) <= 24
    running()
    zeusrun.start("submit", job, "--overlap", "queue")
    screen = terminal.wait_for("job-1-1", "0.1 → 0.5", "1. job waits since", without=["nothing"])
    assert "cost" not in "".join(screen)
    terminal.resize(6, 120)
    screen = terminal.wait_for("more lines")
    assert len(screen) == 6
    assert re.fullmatch(r"… \d+ more lines", screen[-1])
    assert terminal.end(b"xq") == 0


def test_ctrl_c_ends_it_well(watch):
    terminal = watch()
    screen = terminal.wait_for("nothing runs now")
    assert len([line for line in screen if line]) == 2  # without GPUs and schedules, no tables
    assert terminal.end(b"\x03") == 0
    assert "Traceback" not in terminal.seen


def test_a_signal_leaves_the_terminal_as_it_was(watch):
    terminal = watch()
    terminal.wait_for("nothing runs now")
    terminal.child.send_signal(signal.SIGTERM)
    assert terminal.child.wait(TIMEOUT_S) == -signal.SIGTERM
    terminal.read()


def test_what_cannot_be_read_is_one_line_and_the_rest_goes_on(zeusrun, record, watch):
    record(1, None)
    record(1, None, job="other")
    history = zeusrun.home / "history" / "other.json"
    whole = history.read_bytes()
    terminal = watch()
    terminal.resize(24, 400)  # the message begins with a path
    terminal.wait_for("job-1-1", "other-1-1")
    history.write_text("{")
    screen = terminal.wait_for("other.json is damaged", without=["other-1-1"])
    assert screen[1].startswith("! ")
    assert screen[2] == ""
    assert any("job-1-1" in line for line in screen)
    (zeusrun.home / "schedules").mkdir(mode=0o700)
    (zeusrun.home / "schedules" / "job.json").write_text("{")
    assert terminal.wait_for("job.json is not a schedule")
    history.write_bytes(whole)
    (zeusrun.home / "schedules" / "job.json").unlink()
    terminal.wait_for("other-1-1", without=["damaged", "not a schedule"])
    assert terminal.end(b"q") == 0


def test_it_is_refused_without_a_terminal_and_for_programs(cli):
    code, out, err = cli("status", "--watch")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "needs a terminal" in err
    code, out, err = cli("status", "--watch", "--json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "exclude each other" in err


def test_an_unknown_job_is_refused_before_anything_is_shown(zeusrun, record, watch):
    record(1)
    terminal = watch("jab")
    assert terminal.child.wait(TIMEOUT_S) == 2
    terminal.read()
    assert "did you mean 'job'?" in " ".join(terminal.seen.split())


@pytest.mark.parametrize("waited", [None, 4.0])
def test_the_share_that_waits_for_data_is_shown_if_it_is_known(cli, record, zeusrun, waited):
    curve = (CurvePoint(1, 10.0, 5.0, 0.2),)
    part = replace(DONE, time_s=10.0, curve=curve, data_wait_s=waited)
    trial = record(1, None)
    live = Live(trial.finish(part), os.getpid(), None, None)
    write_live(RunPaths(Path(trial.run_dir)), live)
    out = cli("status")[1]
    assert ("data wait" in out, "40\N{NO-BREAK SPACE}%" in out) == (waited is not None,) * 2
