"""Backups as the docs make them, and what clients notice after one was restored."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

pytest.importorskip("sqlalchemy")

from tests.contracts.history import begin
from tests.contracts.shared import with_uuid
from tests.databases import as_user, expire_lease
from tests.factories import REACHED, ROOT
from zeusrun.history.base import Conflict
from zeusrun.history.sql.store import SqlHistory
from zeusrun.history.sql.survey import read_running
from zeusrun.trial import TrialStatus

PAGE = (ROOT / "docs" / "server-database.md").read_text(encoding="utf-8")


def documented(program):
    """Return the command of the docs that begins with a program."""
    return re.search(rf"^ *({program} .*)$", PAGE, re.MULTILINE)[1]


def shell(command, folder):
    subprocess.run(["sh", "-ec", command], cwd=folder, check=True, capture_output=True)


class Lost:
    """A history after an older backup of it was restored.

    Attributes:
        versions: What two clients have seen before, of the backup and of what was lost.
    """

    def __init__(self, history):
        self.history = history
        self.versions = {}

    def before(self):
        for number in (1, 2):
            trial = begin(self.history, with_uuid(number))
        self.history.finish("digits-1-1", REACHED)
        self.running = trial
        self.versions["backup"] = self.history.changes("digits", None).version

    def after(self):
        for number in (3, 4):
            begin(self.history, with_uuid(number))
        self.versions["lost"] = self.history.changes("digits", None).version

    def check_old(self):
        """Check that the history is that of the backup."""
        assert [trial.recurrence for trial in self.history.trials("digits")] == [1, 2]

    def check_clients(self):
        """Check that no client takes a version from before for one of today."""
        for version in self.versions.values():
            found = self.history.changes("digits", version, 1000)
            assert found.whole
            assert found.trials == tuple(self.history.trials("digits"))
            with pytest.raises(Conflict):
                self.history.begin(with_uuid(3), after=version)
        new = self.history.changes("digits", None).version
        assert begin(self.history, with_uuid(3)).recurrence == 3
        assert not self.history.changes("digits", new).whole


@pytest.fixture
def lost(sql_history, tmp_path):
    """A history of which an older backup was put in place."""
    lost = Lost(sql_history)
    lost.before()
    if shutil.which("sqlite3") is None:
        pytest.skip("no sqlite3 is installed")
    placed = {
        "/var/lib/zeusrun/server/": "",
        "/var/backups/zeusrun.db": f"{tmp_path}/backup.db",
        "-o zeusrun -g zeusrun ": "",
    }

    def run_documented(program):
        command = documented(program)
        for shown, here in placed.items():
            command = command.replace(shown, here)
        shell(command, tmp_path)

    run_documented("sqlite3")
    lost.after()
    sql_history.close()
    run_documented("rm")
    run_documented("install")
    lost.check_old()
    return lost


def test_clients_of_a_restored_history_read_it_anew(lost):
    lost.history.start_anew()
    lost.check_old()
    lost.check_clients()


def test_a_version_of_the_future_is_read_anew_and_changes_nothing(lost):
    found = lost.history.changes("digits", lost.versions["lost"])
    assert (found.whole, found.version) == (True, lost.versions["backup"])
    assert found.trials == tuple(lost.history.trials("digits"))


def test_a_running_trial_survives_the_time_in_which_nobody_could_renew_its_lease(lost):
    expire_lease(lost.history, "digits-2-1")
    lost.history.start_anew()
    assert lost.history.unfinished("digits") == [lost.running]
    lost.history.renew("digits-2-1", lease_s=3600)
    lost.history.start_anew()
    (running,) = read_running(lost.history.engine, [2])
    assert running.lease_left_s > 3000  # a lease never gets shorter
    finished = lost.history.finish(lost.running.uuid, REACHED)
    assert finished.status is TrialStatus.REACHED


def test_what_the_backup_does_not_know_is_delivered_anew(lost):
    trial = with_uuid(3)
    lost.history.start_anew()
    assert lost.history.add([trial.finish(REACHED)]) == [trial.finish(REACHED)]


@pytest.mark.long
def test_a_dump_is_restored(postgres, postgres_url):
    history = SqlHistory(postgres_url)
    lost, name = Lost(history), history.engine.url.database
    folder = postgres.folder / name
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    dump, restore = (
        documented(program)
        .replace(f"{program} ", f"{program} -U postgres -h {postgres.folder} ", 1)
        .replace(" zeusrun", f" {name}")
        .replace("=zeusrun", f"={name}")
        for program in ("pg_dump", "pg_restore")
    )
    lost.before()
    run(postgres, dump, folder)
    lost.after()
    history.close()
    run(postgres, restore, folder)
    lost.check_old()
    history.start_anew()
    lost.check_clients()
    history.close()


def run(server, command, folder):
    argv = as_user(server.kind.user, ["sh", "-ec", command])
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
