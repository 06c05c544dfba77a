"""Files that are opened without following what others have put in their place."""

from __future__ import annotations

import os
import stat

import pytest

from zeusrun.files.private import (
    make_folder,
    open_for_reading,
    open_for_writing,
    read_file,
    remove_link,
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


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path, victim):
    link = tmp_path / "file"
    link.symlink_to(victim)
    write_file(link, b"content")
    assert victim.read_text() == "mine"
    assert not link.is_symlink()
    assert link.read_bytes() == b"content"


def test_a_dangling_link_creates_nothing(tmp_path):
    (tmp_path / "file").symlink_to(tmp_path / "elsewhere")
    write_file(tmp_path / "file", b"")
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "logs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="logs/rank0") as caught:
        write_file(tmp_path / "logs" / "rank0", b"")
    assert caught.value.filename == str(tmp_path / "logs" / "rank0")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_pipe_that_nobody_reads_is_an_error_and_not_a_wait(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe"):
        open_for_writing(tmp_path / "pipe", os.O_WRONLY)


def test_the_beginning_of_a_file_is_read(tmp_path, victim):
    assert read_file(victim, 2) == b"mi"


@pytest.mark.parametrize("kind", ["missing", "link", "dangling", "pipe", "device", "in a link"])
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
    elif kind == "in a link":
        (tmp_path / "folder").symlink_to(tmp_path)
        path = tmp_path / "folder" / "victim"
    with pytest.raises(FileNotFoundError):
        open_for_reading(path)


def test_only_links_are_removed(tmp_path, victim):
    link = tmp_path / "link"
    link.symlink_to(victim)
    for path in (link, victim, tmp_path / "gone", tmp_path):
        remove_link(path)
    assert not os.path.lexists(link)
    assert victim.read_text() == "mine"


def test_no_descriptor_is_left_open(tmp_path, victim):
    def count():
        return len(os.listdir("/proc/self/fd"))

    before = count()
    (tmp_path / "link").symlink_to(tmp_path)
    write_file(victim, b"")
    read_file(victim, 1)
    for path in (tmp_path / "link" / "victim", "/dev/zero", tmp_path / "gone"):
        with pytest.raises(OSError, match=r".*"):
            open_for_reading(path)
    assert count() == before


@pytest.mark.parametrize("flags", [os.O_TRUNC, os.O_APPEND, 0])
def test_another_name_of_a_file_is_left_alone(tmp_path, flags):
    victim, planted = tmp_path / "victim", tmp_path / "planted"
    victim.write_text("mine")
    os.link(victim, planted)
    descriptor = open_for_writing(planted, os.O_WRONLY | os.O_CREAT | flags)
    os.write(descriptor, b"theirs")
    os.close(descriptor)
    assert (victim.read_text(), planted.read_text()) == ("mine", "theirs")
