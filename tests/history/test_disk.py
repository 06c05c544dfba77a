"""Disks that fail and writers that die, at every step: the last committed state is what is read."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from tests.contracts.history import REACHED, build_trial, next_trial
from zeusrun.errors import ExitCode, HistoryError
from zeusrun.history.tinydb import TinyDBHistory

FIRST = build_trial(1)
SECOND = build_trial(2)

# Every call by which a write touches the disk, save write(2) itself, which fails for real below.
SYSTEM_CALLS = [
    (os, "open"),
    (os, "fsync"),
    (os, "link"),
    (Path, "mkdir"),
    (Path, "unlink"),
    (Path, "replace"),
]


def intercept(monkeypatch, before):
    """Call ``before(step)`` in front of every system call of a write; returns the steps taken."""
    steps = []

    def patch(owner, name):
        real = getattr(owner, name)

        def call(*arguments, **options):
            steps.append(name)
            before(len(steps))
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    for owner, name in SYSTEM_CALLS:
        patch(owner, name)
    return steps


def count_steps(tmp_path, monkeypatch):
    history = TinyDBHistory(tmp_path / "count")
    history.begin("digits", next_trial)
    with monkeypatch.context() as patches:
        steps = intercept(patches, lambda step: None)
        history.begin("digits", next_trial)
    assert {"open", "fsync", "link", "replace"} <= set(steps)
    return len(steps)


def fork(work):
    """Run ``work`` in a child of its own and return its pid; what it returns is its exit code."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        code = work()
    finally:
        os._exit(code)


def wait_for(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def check_and_go_on(directory, allowed):
    """Read one of the allowed states, then write as if nothing had been; no litter is left."""
    history = TinyDBHistory(directory)
    trials = history.trials("digits")
    assert trials in allowed
    json.loads((directory / "digits.json").read_bytes())
    assert history.begin("digits", next_trial).recurrence == len(trials) + 1
    names = {path.name for path in directory.iterdir()}
    assert names == {"digits.json", "digits.json.bak", "digits.json.lock"}
    return trials


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_an_io_error_at_any_step_loses_nothing(tmp_path, monkeypatch, lasting):
    last = count_steps(tmp_path, monkeypatch)
    for broken in range(1, last + 1):
        directory = tmp_path / str(broken)
        history = TinyDBHistory(directory)
        history.begin("digits", next_trial)

        def fail(step, broken=broken):
            if step == broken or (lasting and step > broken):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        allowed = [[FIRST], [FIRST, SECOND]]
        with monkeypatch.context() as patches:
            steps = intercept(patches, fail)
            try:
                history.begin("digits", next_trial)
            except HistoryError as error:
                assert str(directory / "digits.json") in str(error)
                assert "Input/output error" in str(error)
            else:
                assert steps[broken - 1] == "unlink"  # sweeping may fail, the write is done
                allowed = [[FIRST, SECOND]]
        check_and_go_on(directory, allowed)


def test_a_writer_killed_between_any_two_steps_loses_nothing(tmp_path, monkeypatch):
    last = count_steps(tmp_path, monkeypatch)
    seen = []
    for fatal in range(1, last + 1):
        directory = tmp_path / str(fatal)
        history = TinyDBHistory(directory)
        history.begin("digits", next_trial)

        def work(history=history, fatal=fatal):
            def die(step):
                if step == fatal:
                    os.kill(os.getpid(), signal.SIGKILL)

            intercept(monkeypatch, die)
            history.begin("digits", next_trial)
            return 0

        assert wait_for(fork(work)) == -signal.SIGKILL
        seen.append(check_and_go_on(directory, [[FIRST], [FIRST, SECOND]]))
    # Nothing until one step, everything from then on, and both really happen.
    assert seen[0] == [FIRST]
    assert seen[-1] == [FIRST, SECOND]
    assert [len(trials) for trials in seen] == sorted(len(trials) for trials in seen)


def test_content_is_synced_before_it_gets_its_name_and_the_name_before_begin_returns(
    tmp_path, monkeypatch
):
    history = TinyDBHistory(tmp_path)
    history.begin("digits", next_trial)
    steps = []
    sync, replace = os.fsync, Path.replace

    def record_sync(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        size = path.stat().st_size if path.is_file() else None
        steps.append(("fsync", path.name, size))
        sync(descriptor)

    def record_replace(path, target):
        steps.append(("replace", path.name, target.name))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "replace", record_replace)
    history.begin("digits", next_trial)
    assert steps == [
        ("fsync", "digits.json.tmp", (tmp_path / "digits.json").stat().st_size),
        ("replace", "digits.json.bak.tmp", "digits.json.bak"),
        ("replace", "digits.json.tmp", "digits.json"),
        ("fsync", tmp_path.name, None),
    ]


def test_without_hard_links_the_copy_is_written(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    history = TinyDBHistory(tmp_path)
    history.begin("digits", next_trial)
    before = (tmp_path / "digits.json").read_bytes()
    monkeypatch.setattr(os, "link", refuse)
    history.begin("digits", next_trial)
    assert (tmp_path / "digits.json.bak").read_bytes() == before
    assert (tmp_path / "digits.json.bak").stat().st_mode & 0o777 == 0o600
    check_and_go_on(tmp_path, [[FIRST, SECOND]])


def test_a_directory_that_cannot_be_synced_is_good_enough(tmp_path, monkeypatch):
    real = os.fsync

    def fsync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert TinyDBHistory(tmp_path).begin("digits", next_trial) == FIRST


def test_a_planted_link_is_not_followed(tmp_path):
    directory = tmp_path / "history"
    history = TinyDBHistory(directory)
    history.begin("digits", next_trial)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for suffix in (".tmp", ".bak.tmp"):
        (directory / f"digits.json{suffix}").symlink_to(victim)
    history.begin("digits", next_trial)
    assert victim.read_text() == "mine"
    check_and_go_on(directory, [[FIRST, SECOND]])


def test_a_file_size_limit_is_explained_and_loses_nothing(tmp_path):
    history = TinyDBHistory(tmp_path)
    history.begin("digits", next_trial)
    report = tmp_path.parent / "report"

    def work():
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))
        try:
            history.begin("digits", next_trial)
        except HistoryError as error:
            report.write_text(str(error))
            return error.exit_code
        return 0

    assert wait_for(fork(work)) == ExitCode.HISTORY
    message = report.read_text()
    assert f"cannot write the history {tmp_path / 'digits.json'}: File too large" in message
    assert "ulimit -f" in message
    check_and_go_on(tmp_path, [[FIRST]])


def test_a_directory_one_may_not_enter_is_an_error_and_not_an_empty_history(tmp_path):
    directory = tmp_path / "history"
    history = TinyDBHistory(directory)
    history.begin("digits", next_trial)
    directory.chmod(0)

    def work():
        if os.geteuid() == 0:
            os.seteuid(65534)  # modes do not bind root
        for use in (
            history.jobs,
            lambda: history.trials("digits"),
            lambda: history.find("digits-1-1"),
            lambda: history.begin("digits", next_trial),
            lambda: history.finish("digits-1-1", REACHED),
        ):
            with pytest.raises(HistoryError, match="Permission denied; give yourself access"):
                use()
        return 0

    try:
        assert wait_for(fork(work)) == 0
    finally:
        directory.chmod(0o700)
    check_and_go_on(directory, [[FIRST]])


def test_a_file_where_the_directory_should_be_is_explained(tmp_path):
    directory = tmp_path / "history"
    directory.write_text("not a directory")
    history = TinyDBHistory(directory)
    for use in (
        history.jobs,
        lambda: history.trials("digits"),
        lambda: history.begin("digits", next_trial),
        lambda: history.finish("digits-1-1", REACHED),
    ):
        with pytest.raises(HistoryError, match=f"{directory}.*a directory is expected there"):
            use()
    assert directory.read_text() == "not a directory"


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 256 KiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(directory)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if mounted.returncode != 0:
        pytest.skip(f"mounting a tmpfs is not permitted here: {mounted.stderr.strip()}")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


def fill(directory):
    """Write until nothing more fits."""
    ballast = directory / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError as error:
            assert error.errno == errno.ENOSPC
    return ballast


def test_a_full_disk_is_explained_and_loses_nothing(small_disk):
    history = TinyDBHistory(small_disk)
    history.begin("digits", next_trial)
    ballast = fill(small_disk)
    for use in (
        lambda: history.begin("digits", next_trial),
        lambda: history.finish("digits-1-1", REACHED),
    ):
        with pytest.raises(HistoryError, match=r"digits\.json: No space left.*free some space"):
            use()
        assert history.trials("digits") == [FIRST]
    ballast.unlink()
    check_and_go_on(small_disk, [[FIRST]])


def test_a_read_only_disk_can_be_read_but_not_written(small_disk):
    history = TinyDBHistory(small_disk)
    history.begin("digits", next_trial)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert history.trials("digits") == [FIRST]
    assert history.jobs() == ["digits"]
    for use in (
        lambda: history.begin("digits", next_trial),
        lambda: history.finish("digits-1-1", REACHED),
    ):
        with pytest.raises(HistoryError, match=r"Read-only file system.*ZEUSRUN_HOME"):
            use()
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    check_and_go_on(small_disk, [[FIRST]])
