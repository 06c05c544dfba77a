"""The shared history as a machine uses it: the contract, over a database."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")

from tests.contracts.history import HistoryContract, begin
from tests.contracts.shared import offline_trial, with_uuid
from zeusrun.history.shared.store import SharedHistory


@pytest.fixture
def history(sql_history, tmp_path):
    return SharedHistory(sql_history, tmp_path / "shared", "the database")


@pytest.fixture
def database(sql_history):
    return sql_history


class TestSharedHistory(HistoryContract):
    def test_a_trial_that_began_offline_is_found_by_the_id_that_it_had(self, history):
        begin(history, with_uuid(7))
        trial = offline_trial()
        (numbered,) = history.add([trial])
        assert numbered.trial == "digits-8-1"
        assert history.trials("digits")[1:] == [numbered]
        assert history.find(trial.trial) == numbered  # by the copy

    def test_a_trial_that_began_offline_does_not_begin_online(self, history, database):
        trial = offline_trial()
        assert begin(history, trial) == trial
        assert database.trials("digits") == []
        assert history.unfinished("digits") == [trial]
