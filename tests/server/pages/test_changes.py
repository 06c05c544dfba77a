"""What an open page asks for again and again: whether anything has changed."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

from tests.factories import REACHED, begin, build_trial
from tests.runs import wait_for
from tests.server.pages.conftest import fetch, serve
from tests.server.pages.values import LIVE, host, named
from tests.view.report.values import run
from zeusrun.history.sql.tokens import create_token


@pytest.fixture
def port(store):
    store.add([run(1, 32), named("other", run(1, 32))])
    with serve(store) as opened:
        yield opened


def watched(port, path):
    """Return the version of a page, and the address at which it asks for the present one."""
    page = fetch(port, path).text
    version, address = re.search(r'data-version="([^"]+)" data-watch="([^"]+)"', page).groups()
    return version, "/" + address.removeprefix("../")


def test_a_version_changes_when_a_run_begins_beats_and_ends(store, port):
    version, address = watched(port, "/job/job")
    answer = fetch(port, address)
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert answer.headers["Cache-Control"] == "no-store"
    seen = [version, answer.text]
    assert version == answer.text
    begin(store, build_trial(2))
    seen.append(fetch(port, address).text)
    store.renew("job-2-1", LIVE)
    seen.append(fetch(port, address).text)
    store.finish("job-2-1", REACHED)
    seen.append(fetch(port, address).text)
    assert len(set(seen)) == 4
    assert watched(port, "/run/job-2-1") == (seen[-1], address)


def test_a_page_watches_its_own_job_and_the_first_page_everything(store, port):
    own, all_ = watched(port, "/job/job"), watched(port, "/machines")
    store.add([named("other", run(2, 32))])
    assert fetch(port, own[1]).text == own[0]
    changed = fetch(port, all_[1]).text
    assert changed != all_[0]
    store.report_host("node", host("job"))
    assert fetch(port, all_[1]).text != changed


def test_without_a_valid_token_nobody_learns_that_something_changed(store, port):
    create_token(store.engine, "other", can_write=False, lasts_s=None)
    for path in ("/version", "/version?job=job"):
        assert fetch(port, path).status in {303, 401}
        assert fetch(port, path, Authorization="Bearer zeusrun_0123abcd_x").status == 401


def test_what_a_token_is_told_of_changes_depends_on_its_jobs_alone(store, port):
    """No request is held open: a page asks every two seconds."""
    token, _ = create_token(store.engine, "oth*", can_write=False, lasts_s=None)

    def told():
        asked = ("/version", "/version?job=job", "/version?job=other", "/job/other", "/")
        headers = {"Authorization": f"Bearer {token}"}
        answers = [fetch(port, path, **headers) for path in asked]
        assert [each.status for each in answers] == [200, 404, 200, 200, 200]
        return [(each.text, each.headers["ETag"]) for each in answers]

    wait_for(lambda: "data-pending" not in told()[-1][0], what="all sums")
    first = told()
    begin(store, build_trial(2))
    assert told() == first
    store.renew("job-2-1", LIVE)
    assert told() == first
    store.finish("job-2-1", REACHED)
    store.add([named("oath", run(1, 32))])
    assert told() == first
    store.report_host("node", host("job"))
    assert told()[:4] == first[:4]  # the first page counts the machines, which are for everybody
    store.add([named("other", run(2, 32))])
    changed = told()
    assert (changed[0] != first[0], changed[1] == first[1]) == (True, True)


def test_an_unknown_job_has_no_version(port):
    assert fetch(port, "/version?job=../x").status == 404
