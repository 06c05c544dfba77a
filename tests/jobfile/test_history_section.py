"""The key ``history`` of a job file."""

from __future__ import annotations

import pytest

from tests.factories import load_job
from zeusrun.errors import JobFileError
from zeusrun.jobfile.spec import load_spec


@pytest.mark.parametrize(
    ("written", "url"),
    [
        (None, None),
        ("https://zeus.example.org/team", "https://zeus.example.org/team"),
        ({"url": "http://127.0.0.1:8787"}, "http://127.0.0.1:8787"),
        ("tinydb", "tinydb"),
        ({"wait_s": 10}, None),
    ],
)
def test_it_is_a_url_or_a_section(tmp_path, written, url):
    spec = load_job(tmp_path, history=written)
    assert spec.history.url == url
    assert spec.history.offline == "fail"
    copy = tmp_path / "copy.yaml"
    copy.write_text(spec.to_yaml())
    assert load_spec(copy).history == spec.history


def test_an_override_sets_it(tmp_path):
    spec = load_job(tmp_path)
    again = load_spec(spec.source, ["history=https://a.example.org", "history.offline=cheapest"])
    assert (again.history.url, again.history.offline) == ("https://a.example.org", "cheapest")


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("https://me:secret@host", "must not contain a user name or a password"),
        ("https://me@host", "must not contain a user name or a password"),
        ("postgresql://me:secret@db/x", "zeusrun serve --database-url"),
        ("sqlite:////srv/history.db", "zeusrun serve --database-url"),
        ("ftp://host", "must be the address of a server"),
        ("127.0.0.1:8801", "such as http://127.0.0.1:8801"),
        ("tinybd", "did you mean 'tinydb'"),
        ({"url": 5}, "must be text"),
        ({"offline": "never"}, "must be 'fail' or 'cheapest'"),
        ({"wait_s": -1}, "greater than or equal to 0"),
        ({"offlin": "fail"}, "did you mean 'offline'"),
        (5, "must be a section"),
    ],
)
def test_what_it_cannot_be_is_refused(tmp_path, written, words):
    with pytest.raises(JobFileError, match=words) as error:
        load_job(tmp_path, history=written)
    assert "'history" in str(error.value)
    assert "secret" not in str(error.value).replace("secrets", "")
