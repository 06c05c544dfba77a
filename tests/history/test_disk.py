"""Disks that fail and writers that die, at every step: the last committed state is what is read."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contracts.history import REACHED, begin, build_trial
from zeusrun.errors import ExitCode, HistoryError
from zeusrun.history.tinydb.store import TinyDBHistory

FIRST = build_trial(1)
SECOND = build_trial(2)
FILES = {"digits.json", "digits.json.bak", "digits.json.lock"}
VOLUME = "digits.volumes/000001.json"
# Writes that do more and more: the n-th trial begins, and what is on disk afterwards.
WRITES = {
    "plain": (2, FILES),
    "sealing": (5, FILES | {VOLUME, "digits.volumes/000002.json"}),
}

# Every call by which a write touches the disk, save write(2) itself, which fails for real below.
SYSTEM_CALLS = [
    (os, "open"),
    (os, "fsync"),
    (os, "link"),
    (Path, "mkdir"),
    (Path, "unlink"),
    (Path, "replace"),
    (Path, "stat"),
    (Path, "iterdir"),
]


@pytest.fixture(params=WRITES)
def write(request):
    """The name of a write."""
    return request.param


def prepare(directory, write="plain"):
    """Return a history in which that write comes next; it seals single trials from then on."""
    history = TinyDBHistory(directory)
    for number in range(1, WRITES[write][0]):
        begin(history)
        if "sealing" in write:
            history.finish(f"digits-{number}-1", REACHED)
    return TinyDBHistory(directory, volume_trials=1)


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


def count_steps(tmp_path, monkeypatch, write):
    history = prepare(tmp_path / "count", write)
    with monkeypatch.context() as patches:
        steps = intercept(patches, lambda step: None)
        begin(history)
    assert {"open", "fsync", "link", "replace"} <= set(steps)
    assert (tmp_path / "count" / VOLUME).exists() == ("sealing" in write)
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


def check_and_go_on(directory, allowed, write="plain"):
    """Read one of the allowed states, then write as if nothing had been; no litter is left."""
    history = TinyDBHistory(directory, volume_trials=1)
    trials = history.trials("digits")
    assert trials in allowed
    json.loads((directory / "digits.json").read_bytes())
    assert begin(history).recurrence == len(trials) + 1
    assert TinyDBHistory(directory).trials("digits") == [*trials, build_trial(len(trials) + 1)]
    files = (path for path in directory.rglob("*") if not path.is_dir())
    assert {path.relative_to(directory).as_posix() for path in files} == WRITES[write][1]
    return trials


@pytest.mark.parametrize(
    "lasting", [False, pytest.param(True, marks=pytest.mark.long)], ids=["once", "from then on"]
)
def test_an_io_error_at_any_step_loses_nothing(tmp_path, monkeypatch, lasting, write):
    last = count_steps(tmp_path, monkeypatch, write)
    for broken in range(1, last + 1):
        directory = tmp_path / str(broken)
        history = prepare(directory, write)
        before = history.trials("digits")
        after = [*before, build_trial(len(before) + 1)]

        def fail(step, broken=broken):
            if step == broken or (lasting and step > broken):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        allowed = [before, after]
        with monkeypatch.context() as patches:
            steps = intercept(patches, fail)
            try:
                begin(history)
            except HistoryError as error:
                assert str(directory) in str(error)
                assert "Input/output error" in str(error)
            else:
                assert steps[broken - 1] == "unlink"  # sweeping may fail, the write is done
                assert history.trials("digits") == after
        check_and_go_on(directory, allowed, write)


def begin_and_die(history, monkeypatch, step):
    """Begin a trial in a process that is killed in front of a system call."""

    def work():
        def die(now):
            if now == step:
                os.kill(os.getpid(), signal.SIGKILL)

        intercept(monkeypatch, die)
        begin(history)
        return 0

    assert wait_for(fork(work)) == -signal.SIGKILL


def test_a_writer_killed_between_any_two_steps_loses_nothing(tmp_path, monkeypatch, write):
    last = count_steps(tmp_path, monkeypatch, write)
    before = prepare(tmp_path / "before", write).trials("digits")
    after = [*before, build_trial(len(before) + 1)]
    seen = []
    for fatal in range(1, last + 1):
        directory = tmp_path / str(fatal)
        history = prepare(directory, write)
        begin_and_die(history, monkeypatch, fatal)
        seen.append(check_and_go_on(directory, [before, after], write))
    # Nothing until one step, everything from then on, and both really happen.
    assert seen[0] == before
    assert seen[-1] == after
    assert [len(trials) for trials in seen] == sorted(len(trials) for trials in seen)


def record_steps(monkeypatch):
    """Note each fsync (of what, how long) and each rename of what follows, in order."""
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
    return steps


def test_content_is_synced_before_it_gets_its_name_and_the_name_before_begin_returns(
    tmp_path, monkeypatch
):
    history = prepare(tmp_path)
    steps = record_steps(monkeypatch)
    begin(history)
    assert steps == [
        ("fsync", "digits.json.tmp", (tmp_path / "digits.json").stat().st_size),
        ("replace", "digits.json.bak.tmp", "digits.json.bak"),
        ("replace", "digits.json.tmp", "digits.json"),
        ("fsync", tmp_path.name, None),
    ]


def test_a_volume_is_on_disk_before_the_file_that_does_without_its_trials(tmp_path, monkeypatch):
    history = prepare(tmp_path, "sealing")
    steps = record_steps(monkeypatch)
    begin(history)
    assert steps == [
        ("fsync", tmp_path.name, None),
        ("fsync", "000001.json.tmp", (tmp_path / VOLUME).stat().st_size),
        ("replace", "000001.json.tmp", "000001.json"),
        ("fsync", "digits.volumes", None),
        ("fsync", tmp_path.name, None),
        ("fsync", "000002.json.tmp", (tmp_path / "digits.volumes/000002.json").stat().st_size),
        ("replace", "000002.json.tmp", "000002.json"),
        ("fsync", "digits.volumes", None),
        ("fsync", "digits.json.tmp", (tmp_path / "digits.json").stat().st_size),
        ("replace", "digits.json.bak.tmp", "digits.json.bak"),
        ("replace", "digits.json.tmp", "digits.json"),
        ("fsync", tmp_path.name, None),
    ]


def test_without_hard_links_the_copy_is_written(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    history = prepare(tmp_path)
    before = (tmp_path / "digits.json").read_bytes()
    monkeypatch.setattr(os, "link", refuse)
    begin(history)
    copy = tmp_path / "digits.json.bak"
    assert copy.read_bytes() == before
    assert copy.stat().st_mode & 0o777 == 0o600
    check_and_go_on(tmp_path, [[FIRST, SECOND]])


def test_a_directory_that_cannot_be_synced_is_good_enough(tmp_path, monkeypatch):
    real = os.fsync

    def fsync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert begin(TinyDBHistory(tmp_path)) == FIRST


def test_a_planted_link_is_not_followed(tmp_path):
    directory = tmp_path / "history"
    history = TinyDBHistory(directory)
    begin(history)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for suffix in (".tmp", ".bak.tmp"):
        (directory / f"digits.json{suffix}").symlink_to(victim)
    begin(history)
    assert victim.read_text() == "mine"
    check_and_go_on(directory, [[FIRST, SECOND]])


def test_a_file_size_limit_is_explained_and_loses_nothing(tmp_path):
    history = TinyDBHistory(tmp_path)
    begin(history)
    report = tmp_path.parent / "report"

    def work():
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))
        try:
            begin(history)
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
    begin(history)
    directory.chmod(0)

    def work():
        if os.geteuid() == 0:
            os.seteuid(65534)  # modes do not bind root
        for use in (
            history.jobs,
            lambda: history.trials("digits"),
            lambda: history.find("digits-1-1"),
            lambda: begin(history),
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
        lambda: begin(history),
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


def test_a_full_disk_is_explained_and_loses_nothing(small_disk, write):
    history = prepare(small_disk, write)
    before = history.trials("digits")
    ballast = fill(small_disk)
    uses = [lambda: begin(history)]
    if "sealing" not in write:
        uses.append(lambda: history.finish("digits-1-1", REACHED))
    for use in uses:
        with pytest.raises(HistoryError, match=r"digits\.json: No space left.*free some space"):
            use()
        assert history.trials("digits") == before
    ballast.unlink()
    check_and_go_on(small_disk, [before], write)


def test_a_disk_with_room_for_the_volume_alone_loses_nothing(small_disk):
    history = TinyDBHistory(small_disk)
    wide = replace(REACHED, warnings=("x" * 20_000,))
    for number in (1, 2, 3):
        begin(history)
        history.finish(f"digits-{number}-1", wide)
    before = history.trials("digits")
    sealing = TinyDBHistory(small_disk, volume_trials=1)
    (small_disk / "digits.json.bak").unlink()
    ballast = fill(small_disk)
    with ballast.open("r+b") as file:
        file.truncate(ballast.stat().st_size - 40_000)
    with pytest.raises(HistoryError, match="No space left"):
        begin(sealing)
    assert (small_disk / VOLUME).exists()
    assert sealing.trials("digits") == before
    ballast.unlink()
    assert begin(sealing) == build_trial(4)
    assert sealing.trials("digits") == [*before, build_trial(4)]


def test_a_file_where_the_volumes_should_be_is_explained_and_loses_nothing(tmp_path):
    history = prepare(tmp_path, "sealing")
    before = history.trials("digits")
    (tmp_path / "digits.volumes").write_text("mine")
    with pytest.raises(HistoryError, match="a directory is expected there"):
        begin(history)
    assert TinyDBHistory(tmp_path).trials("digits") == before
    (tmp_path / "digits.volumes").unlink()
    check_and_go_on(tmp_path, [before], "sealing")


def test_a_read_only_disk_can_be_read_but_not_written(small_disk):
    history = TinyDBHistory(small_disk)
    begin(history)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert history.trials("digits") == [FIRST]
    assert history.jobs() == ["digits"]
    for use in (
        lambda: begin(history),
        lambda: history.finish("digits-1-1", REACHED),
    ):
        with pytest.raises(HistoryError, match=r"Read-only file system.*ZEUSRUN_HOME"):
            use()
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    check_and_go_on(small_disk, [[FIRST]])
