"""The table of the jobs that Zeus's clients have registered."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")

from tests.databases import opened
from zeusrun.history.sql.zeus_jobs import ZeusJob, ZeusJobs

JOB = ZeusJob("mnist/ä", "mnist--1", {"job": {"batch_sizes": [32]}, "since": 1})


DATABASES = [
    "sqlite_url",
    pytest.param("postgres_url", marks=pytest.mark.long),
]


@pytest.fixture(params=DATABASES)
def jobs(request):
    for history in opened(request.getfixturevalue(request.param)):
        yield ZeusJobs(history.engine)


def test_a_job_is_found_as_it_was_added(jobs):
    assert jobs.add(JOB)
    assert jobs.find("mnist/ä") == jobs.find(job="mnist--1") == JOB
    assert jobs.find("mnist") is jobs.find(job="mnist/ä") is None


def test_an_id_and_the_name_of_a_history_are_given_once(jobs):
    assert jobs.add(JOB)
    assert not jobs.add(JOB._replace(job="another"))
    assert not jobs.add(JOB._replace(job_id="another"))
    assert jobs.find("another") is None


def test_settings_change_and_jobs_go(jobs):
    jobs.add(JOB)
    jobs.change("mnist/ä", {"since": 4})
    assert jobs.find("mnist/ä").settings == {"since": 4}
    assert jobs.remove("mnist/ä")
    assert not jobs.remove("mnist/ä")
    assert jobs.add(JOB)
