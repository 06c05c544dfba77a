"""Zeus's routes over PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from zeusrun.trial import TrialStatus

pytestmark = pytest.mark.long


@pytest.fixture
def database_url(postgres_url):
    return postgres_url


def test_trainings_of_several_servers_have_distinct_numbers(connect, history):
    servers = [connect(), connect()]

    def train(number):
        zeus = servers[number % 2]
        assert zeus.register().status_code in {200, 201}
        trial = zeus.begin()
        zeus.train(trial, epochs=2)
        return trial["trial_number"]

    with ThreadPoolExecutor(6) as pool:
        numbers = sorted(pool.map(train, range(12)))
    assert numbers == list(range(1, 13))
    ended = [trial.status for trial in history.trials("mnist")]
    assert set(ended) <= {TrialStatus.REACHED, TrialStatus.STOPPED}


def test_ids_of_any_script_are_kept_apart(connect, history):
    zeus = connect()
    ids = ["mnist", "Mnist", "mnist-é", "mnist-e", "mnist-漢字", "mnist-🦥"]
    for job_id in ids:
        assert zeus.register(job_id=job_id, job_id_prefix="").status_code == 201
        assert zeus.begin(job_id)["trial_number"] == 1
    assert len(history.jobs()) == len(ids)
