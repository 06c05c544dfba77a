"""Files that are replaced whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from zeusrun.files.atomic import replace_file, temporary_path


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
