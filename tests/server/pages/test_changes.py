"""What an open page asks for again and again: whether anything has changed."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

from tests.factories import REACHED, begin, build_trial
from tests.server.pages.conftest import fetch, serve
from tests.server.pages.values import LIVE, host, named
from tests.view.report.values import run


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


def test_an_unknown_job_has_no_version(port):
    assert fetch(port, "/version?job=../x").status == 404
