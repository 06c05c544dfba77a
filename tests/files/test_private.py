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
    replace_file,
    temporary_path,
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


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.json"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_made_and_replaced_for_its_owner_alone(path, durable):
    for content in (b"first", b"second"):
        replace_file(path, content, durable=durable)
        assert path.read_bytes() == content
        assert path.stat().st_mode & 0o777 == 0o600
    assert names(path.parent) == ["file.json"]


def test_the_previous_content_is_kept_if_that_is_asked(path):
    kept = path.with_name("kept")
    replace_file(path, b"first", kept=kept)
    assert not kept.exists()
    replace_file(path, b"second", kept=kept)
    assert (path.read_bytes(), kept.read_bytes()) == (b"second", b"first")


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_a_killed_writer_left_or_somebody_planted_is_removed(path, kind):
    victim = path.with_name("victim")
    victim.write_text("mine")
    fresh = temporary_path(path)
    fresh.symlink_to(victim) if kind == "link" else fresh.write_text("half")
    replace_file(path, b"new", durable=False)
    assert names(path.parent) == ["file.json", "victim"]
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failing_step_leaves_the_previous_content_and_nothing_else(path, monkeypatch, step):
    replace_file(path, b"first")

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patches:
        patches.setattr(os if step == "fsync" else Path, step, fail)
        with pytest.raises(OSError, match="Input/output"):
            replace_file(path, b"second")
    assert path.read_bytes() == b"first"
    assert names(path.parent) == ["file.json"]


@pytest.mark.parametrize(("durable", "syncs"), [(True, ["file.json.tmp", "home"]), (False, [])])
def test_only_what_must_survive_a_power_cut_is_synced(tmp_path, monkeypatch, durable, syncs):
    folder = tmp_path / "home"
    folder.mkdir()
    real, seen = os.fsync, []

    def fsync(descriptor):
        seen.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    replace_file(folder / "file.json", b"new", durable=durable)
    assert seen == syncs
