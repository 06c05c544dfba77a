"""What a restart knows of the passes before it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zeusrun.sidecar.plan import RankPlan
from zeusrun.sync.rank.agent import SyncedModels


def models(run_dir):
    return SyncedModels(SimpleNamespace(plan=RankPlan(run_dir=run_dir)), {}, SimpleNamespace())


def test_the_passes_of_each_model_are_known_after_a_restart(tmp_path):
    models(tmp_path).save(0, 50)
    models(tmp_path).save(1, 100)
    assert [models(tmp_path).restore(index) for index in range(3)] == [50, 100, 0]


def test_ranks_that_are_the_first_of_different_groups_keep_the_passes_of_both(tmp_path):
    one, other = models(tmp_path), models(tmp_path)
    one.save(0, 50)
    other.save(1, 50)
    one.save(0, 100)
    assert [models(tmp_path).restore(index) for index in range(2)] == [100, 50]


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"0": "x"}', '{"0": -3}', '{"0": NaN}'])
def test_what_a_script_wrote_there_is_no_number_of_passes(tmp_path, content):
    (tmp_path / "sync.json").write_text(content)
    assert models(tmp_path).restore(0) == 0
    models(tmp_path).save(0, 50)
    assert models(tmp_path).restore(0) == 50


def test_a_run_without_a_folder_keeps_nothing():
    models(None).save(0, 50)
    assert models(None).restore(0) == 0
