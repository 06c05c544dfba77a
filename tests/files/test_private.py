"""Files that are opened without following what others have put in their place."""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from zeusrun.files.private import (
    make_folder,
    open_for_reading,
    open_for_writing,
    read_file,
    write_file,
)


@pytest.fixture
def open_to_all():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_text("mine")
    return path


def test_a_file_is_its_owners_alone_whatever_the_umask(tmp_path, open_to_all):
    write_file(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_folders_that_are_made_are_their_owners_alone(tmp_path, open_to_all):
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    for folder in (tmp_path / "a", tmp_path / "a" / "b"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_file_in_the_way_of_a_folder_is_an_error(tmp_path):
    (tmp_path / "a").touch()
    with pytest.raises(OSError, match="a"):
        make_folder(tmp_path / "a")


@pytest.mark.parametrize("target", ["victim", "gone"])
def test_no_file_is_written_through_a_link(tmp_path, victim, target):
    (tmp_path / "file").symlink_to(tmp_path / target)
    with pytest.raises(OSError, match="file") as caught:
        write_file(tmp_path / "file", b"content")
    assert caught.value.errno == errno.ELOOP
    assert victim.read_text() == "mine"
    assert not (tmp_path / "gone").exists()


def test_a_pipe_that_nobody_reads_is_an_error_and_not_a_wait(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe"):
        open_for_writing(tmp_path / "pipe", os.O_WRONLY)


def test_the_beginning_of_a_file_is_read(tmp_path, victim):
    assert read_file(victim, 2) == b"mi"


@pytest.mark.parametrize("kind", ["missing", "link", "dangling", "pipe", "device"])
def test_what_is_no_file_counts_as_missing(tmp_path, victim, kind):
    path = tmp_path / "file"
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "dangling":
        path.symlink_to(tmp_path / "gone")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = "/dev/zero"
    with pytest.raises(FileNotFoundError):
        open_for_reading(path)


def test_no_descriptor_is_left_open(tmp_path, victim):
    def count():
        return len(os.listdir("/proc/self/fd"))

    before = count()
    (tmp_path / "link").symlink_to(victim)
    write_file(victim, b"")
    read_file(victim, 1)
    for path in (tmp_path / "link", "/dev/zero", tmp_path / "gone"):
        with pytest.raises(OSError, match=r".*"):
            open_for_reading(path)
    assert count() == before


def test_a_folder_that_another_process_makes_and_removes_is_made(tmp_path):
    """``mkdir(exist_ok=True)`` fails if the folder is removed right after it was found."""
    path = tmp_path / "run"
    done = threading.Event()

    def make_and_remove():
        while not done.is_set():
            with suppress(OSError):
                path.mkdir()
            with suppress(OSError):
                path.rmdir()

    others = [threading.Thread(target=make_and_remove) for _ in range(3)]
    for other in others:
        other.start()
    try:
        for _ in range(3000):
            make_folder(path)
    finally:
        done.set()
        for other in others:
            other.join()


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("nowhere")])
def test_what_is_no_folder_in_its_place_is_an_error(tmp_path, make):
    make(tmp_path / "run")
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "run")
