"""The owner of a run directory whose record is missing or damaged."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace

import pytest

from tests.factories import build_trial
from zeusrun.launcher.rundir.layout import create_run, write_record
from zeusrun.launcher.rundir.ownership import find_own


@pytest.fixture
def trial(tmp_path):
    """A trial with its run directory in the home ``tmp_path``."""
    paths = create_run(tmp_path, "job", "job-1-1")
    trial = replace(build_trial(), run_dir=str(paths.run_dir), host="node7")
    assert write_record(paths, trial)
    return trial


def test_its_record_says_it(trial, tmp_path):
    assert find_own(tmp_path, trial).run_dir == tmp_path / "runs" / "job" / "job-1-1"
    assert find_own(tmp_path, replace(trial, uuid="0" * 32)) is None


@pytest.mark.parametrize("content", [None, "{"])
def test_without_a_record_a_directory_that_is_there_is_the_trials(trial, tmp_path, content):
    """The trial may have begun on another node with the same home."""
    record = tmp_path / "runs" / "job" / "job-1-1" / "trial.json"
    record.unlink()
    if content is not None:
        record.write_text(content)
    assert find_own(tmp_path, trial) is not None


def test_one_that_is_not_there_may_be_on_another_machine_with_the_same_paths(trial, tmp_path):
    shutil.rmtree(trial.run_dir)
    assert find_own(tmp_path, trial) is None


def test_a_link_elsewhere_is_not_followed(trial, tmp_path):
    link = tmp_path / "elsewhere" / "job-1-1"
    link.parent.mkdir()
    link.symlink_to(trial.run_dir)
    found = find_own(tmp_path, replace(trial, run_dir=str(link)))
    assert found.run_dir == tmp_path / "runs" / "job" / "job-1-1"


def test_a_home_that_is_reached_by_a_link_keeps_its_name(trial, tmp_path):
    other = tmp_path.with_name(f"{tmp_path.name}-link")
    os.symlink(tmp_path, other)
    named = str(other / "runs" / "job" / "job-1-1")
    assert str(find_own(tmp_path, replace(trial, run_dir=named)).run_dir) == named
