"""The lock that dies with its holder, held by real processes."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest

from zeusrun.errors import HistoryError
from zeusrun.files import lock as lock_module
from zeusrun.files.lock import FileLock, SafeLock, is_locked

_HOLDS = """
import sys
from pathlib import Path
from zeusrun.files.lock import FileLock
lock = FileLock(Path(sys.argv[1]))
assert lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.lock"


@pytest.fixture
def new_lock(path):
    """Return a function that makes a lock of this file; the test's end releases them all."""
    made = []
    yield lambda: made.append(FileLock(path)) or made[-1]
    for each in made:
        each.release()


def test_one_has_it_at_a_time_also_within_a_process(new_lock, path):
    first, second = new_lock(), new_lock()
    assert first.acquire()
    assert first.acquire()  # it has it already
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()
    second.release()
    assert path.stat().st_mode & 0o777 == 0o600


def test_it_waits_until_the_timeout(new_lock):
    first, second = new_lock(), new_lock()
    first.acquire()
    assert not second.acquire(0.05)
    threading.Timer(0.1, first.release).start()
    assert second.acquire(30)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_is_free_when_its_holder_dies(new_lock, path, number):
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        assert not new_lock().acquire()
        holder.send_signal(number)
        holder.wait()
    assert new_lock().acquire()


def test_a_child_that_inherits_it_keeps_it(new_lock):
    lock = new_lock()
    lock.acquire()
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[lock.fileno()]) as child:
        lock.release()
        assert not new_lock().acquire()
        child.stdin.close()
        child.wait()
    assert new_lock().acquire()


def test_other_children_do_not(new_lock):
    lock = new_lock()
    lock.acquire()
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, close_fds=False) as child:
        lock.release()
        assert new_lock().acquire(
            5
        )  # the kernel lets the parent go on a moment before it closes them
        child.stdin.close()


def test_a_link_in_its_place_is_neither_followed_nor_removed(new_lock, path, tmp_path):
    target = tmp_path / "precious"
    path.symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        new_lock().acquire()
    assert is_locked(path) is None
    assert not target.exists()
    assert path.is_symlink()


def test_a_file_that_was_removed_while_it_was_held_is_no_lock(new_lock, path, monkeypatch):
    first, second = new_lock(), new_lock()
    first.acquire()
    real = os.open

    def open_and_lose(name, *arguments):
        descriptor = real(name, *arguments)
        if os.fspath(name) == os.fspath(path):
            path.unlink()
            first.release()
        return descriptor

    monkeypatch.setattr(os, "open", open_and_lose)
    assert not second.acquire()  # it had locked a file that nobody else would find
    monkeypatch.undo()
    assert second.acquire(5)
    assert not new_lock().acquire()


def test_without_its_directory_it_cannot_be_taken(new_lock, path):
    shutil.rmtree(path.parent)
    with pytest.raises(FileNotFoundError):
        new_lock().acquire()


def test_a_lock_that_is_not_held_has_no_descriptor(new_lock):
    with pytest.raises(ValueError, match="not held"):
        new_lock().fileno()


def test_checking_a_lock_neither_makes_nor_locks_its_file(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    assert is_locked(path) is False
    assert not path.exists()
    lock = FileLock(path)
    lock.acquire()
    assert is_locked(path) is True
    lock.release()
    with path.open() as asking:  # another process that checks it now
        fcntl.flock(asking, fcntl.LOCK_SH)
        assert is_locked(path) is False

    def refuse(*_arguments):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", refuse)
    assert is_locked(path) is None


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EIO])
def test_a_lock_that_a_disk_does_not_grant_names_the_disk(tmp_path, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(lock_module.fcntl, "flock", refuse)
    folder = tmp_path / "history"
    with pytest.raises(HistoryError, match=f"^{folder} cannot be written: {os.strerror(code)}; "):
        SafeLock(folder / "job.json.lock").acquire()


def test_a_lock_is_no_standard_stream_though_those_are_closed(tmp_path):
    """A process that inherits it would find its own stream in its place."""
    program = (
        "import os, sys; from pathlib import Path; from zeusrun.files.lock import FileLock\n"
        "for number in range(3): os.close(number)\n"
        "lock = FileLock(Path(sys.argv[1])); lock.acquire()\n"
        "os._exit(lock.fileno())"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "lock"], check=False)
    assert done.returncode >= 3
