"""``zeusrun uninstall``: what goes, what stays, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.commands.terminal import Terminal
from tests.gpu import fixtures
from tests.schedule import fake_crontab
from zeusrun.files.lock import FileLock
from zeusrun.gpu.power_limits.original_limits import LimitRecord, write_record
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.schedule.crontab import add_entry, build_command
from zeusrun.schedule.store import Schedules

build_library, plain_library = fixtures.build_library, fixtures.plain_library
gpu_machine, crontab = fixtures.gpu_machine, fake_crontab.crontab
OWN = b"0 3 * * * true  # mine\n"


@pytest.fixture
def used(zeusrun, cli, record, crontab):
    """A home with runs and a schedule, beside other lines in the crontab and other files."""
    record(1)
    crontab.write_bytes(OWN)
    other = zeusrun.folder / "another home"
    add_entry(other, build_command("/python", other))
    before = crontab.read_bytes()
    job = zeusrun.job()
    assert cli("schedule", "add", job, "0 2 * * *")[0] == 0
    assert crontab.read_bytes() != before
    return zeusrun.home, before, job


def test_a_dry_run_lists_everything_and_changes_nothing(zeusrun, cli, used, crontab):
    home, _, _ = used
    (home / "notes.txt").write_text("mine")
    (home / "address").write_text("https://zeus.example.org\n")
    before = crontab.read_bytes(), sorted(home.rglob("*"))
    code, out, err = cli("uninstall", "--dry-run")
    assert (code, err) == (0, "")
    for words in (
        f"({home})",
        f"{home}: ",
        "kB histories",
        "runs: logs, metrics",
        "schedules and their logs",
        f"in {home}: notes.txt",
        "the records on https://zeus.example.org; there, `zeusrun token revoke`",
        "pip uninstall zeusrun",
        "This was a dry run",
    ):
        assert words in " ".join(out.split()), words
    assert "another home" not in out
    assert (crontab.read_bytes(), sorted(home.rglob("*"))) == before


def test_what_zeusrun_wrote_goes_and_everything_else_stays(cli, used, crontab):
    home, before, job = used
    code, out, err = cli("uninstall", "--yes")
    assert (code, err) == (0, "")
    assert "All of this is removed" in out
    assert not home.exists()
    assert crontab.read_bytes() == before
    assert job.exists()
    code, _, err = cli("uninstall", "--yes")
    assert (code, "contains no history of zeusrun" in err) == (2, True)


def test_links_and_files_of_others_stay(cli, used, tmp_path):
    home, _, _ = used
    disk, precious = tmp_path / "disk", tmp_path / "precious"
    (home / "runs").rename(disk)
    (home / "runs").symlink_to(disk)
    precious.mkdir()
    (precious / "file").touch()
    (home / "history" / "link").symlink_to(precious)
    (home / "notes.txt").touch()
    (home / "server").mkdir()
    out = cli("uninstall", "--yes")[1]
    assert f"a link to {disk}, which stays" in " ".join(out.split())
    assert "server (the database of `zeusrun serve`)" in out
    assert {path.name for path in home.iterdir()} == {"notes.txt", "server"}
    assert (precious / "file").exists()
    assert (disk / "job" / "job-1-1").exists()


def test_an_entry_whose_home_was_deleted_by_hand_goes(cli, used, crontab):
    home, before, _ = used
    home.rename(home.with_name("gone"))
    assert cli("uninstall", "--yes")[0] == 0
    assert crontab.read_bytes() == before
    assert not home.exists()


@pytest.mark.usefixtures("crontab")
@pytest.mark.parametrize("place", ["/", "{home}", "{above}", "{foreign}", "{missing}"])
def test_what_is_no_home_of_zeusrun_is_refused(cli, record, zeusrun, monkeypatch, place):
    record(1)
    user, foreign = zeusrun.home, zeusrun.folder / "foreign"  # a history in the user's own home
    for name in ("history", "runs"):
        (foreign / name).mkdir(parents=True, mode=0o700)
    (foreign / "history" / "1066.json").write_text("{}")
    foreign.chmod(0o700)
    names = {"home": user, "above": user.parent, "foreign": foreign, "missing": user / "missing"}
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.setenv("ZEUSRUN_HOME", place.format(**names))
    for option in ("--yes", "--dry-run"):
        code, out, err = cli("uninstall", option)
        assert (code, out) == (2, "")
        assert "nothing is removed" in err
    assert (user / "history" / "job.json").exists()
    assert (foreign / "history" / "1066.json").exists()


def test_a_damaged_history_is_one_of_zeusrun_if_its_runs_are(cli, record, crontab):
    trial = record(1)
    home = Path(trial.run_dir).parents[2]
    (home / "history" / "job.json").write_text("{")
    assert cli("uninstall", "--yes")[0] == 2
    (Path(trial.run_dir) / "trial.json").write_text(json.dumps({"version": 1, **trial.to_json()}))
    assert cli("uninstall", "--yes")[0] == 0
    assert not home.exists()


def test_without_a_terminal_it_needs_yes(cli, used):
    home, _, _ = used
    code, out, err = cli("uninstall")
    assert (code, out) == (2, "")
    assert "there is no terminal" in err
    assert home.exists()


@pytest.mark.parametrize(("key", "removed"), [("y\n", True), ("\n", False), ("\x03", False)])
def test_in_a_terminal_it_asks(zeusrun, used, crontab, key, removed):
    home, _, _ = used
    environment = {**zeusrun.environment, "PATH": os.environ["PATH"]}
    terminal = Terminal(zeusrun.argv("uninstall"), environment, zeusrun.folder)
    try:
        terminal.wait_for("Remove all of this? [y/N]:")
        assert home.exists()
        assert terminal.end(key.encode()) == 0
    finally:
        terminal.child.kill()
        terminal.child.wait()
        os.close(terminal.ours)
    assert home.exists() is not removed
    assert ("Nothing is removed" in terminal.seen) is not removed


def test_a_run_that_goes_on_is_named_and_nothing_is_removed(zeusrun, cli, running, crontab):
    child = running()
    code, out, err = cli("uninstall", "--yes")
    assert (code, out) == (75, "")
    assert "nothing is removed: job-1-1 goes on: `zeusrun cancel job-1-1` stops it" in err
    code, out, _ = cli("uninstall", "--dry-run")
    assert (code, "! nothing can be removed now: job-1-1 goes on" in out) == (0, True)
    assert child.poll() is None
    child.kill()  # what it leaves is ended and removed
    child.wait()
    assert cli("uninstall", "--yes")[0] == 0
    assert not zeusrun.home.exists()


@pytest.mark.parametrize("what", ["submit", "occurrence", "daemon"])
def test_what_is_about_to_run_is_named(cli, used, what):
    home, _, _ = used
    names = {"occurrence": "job@1.000.lock", "daemon": ".daemon.lock", "submit": "lock"}
    lock = FileLock(Schedules(home).directory / names[what])
    ticket = None
    if what == "submit":
        with Tickets(home) as tickets:
            ticket = tickets.take("job")
    else:
        assert lock.acquire()
    try:
        code, _, err = cli("uninstall", "--yes")
    finally:
        lock.release()
        if ticket is not None:
            ticket.release()
    said = {"submit": f"kill {os.getpid()}", "occurrence": "begins", "daemon": "schedule daemon"}
    assert (code, said[what] in err, home.exists()) == (75, True, True)


def test_a_power_limit_that_a_dead_run_left_is_restored_first(
    zeusrun, record, gpu_machine, crontab
):
    record(1)
    gpus, uuid = zeusrun.home / "gpus", gpu_machine.uuid(0)
    gpu_machine.set_limit_w(0, 150)
    write_record(gpus, LimitRecord(uuid, 400.0, "job-1-1", (150.0,)))
    environment = {**gpu_machine.environment, "PATH": os.environ["PATH"]}
    done = zeusrun("uninstall", "--dry-run", **environment)
    assert (done.returncode, uuid in done.stdout) == (0, True)
    assert gpu_machine.limit_w(0) == 150
    gpu_machine.set("permission", 0)
    done = zeusrun("uninstall", "--yes", **environment)
    assert (done.returncode, "only schedules are removed" in done.stderr) == (5, True)
    assert (zeusrun.home / "history").exists()
    gpu_machine.set("permission", 1)
    done = zeusrun("uninstall", "--yes", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert gpu_machine.limit_w(0) == 400
    assert not zeusrun.home.exists()


def test_the_limit_of_another_machine_is_not_forgotten(zeusrun, cli, record, crontab):
    record(1)
    there = LimitRecord("GPU-1", 400.0, "job-1-1", host="elsewhere", boot_id="another")
    write_record(zeusrun.home / "gpus", there)
    code, _, err = cli("uninstall", "--yes")
    assert (code, "that of another machine" in err) == (5, True)
    assert (zeusrun.home / "history" / "job.json").exists()
