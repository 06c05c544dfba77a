"""Cancelling a run from its page, and the end of its log there."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

from tests.factories import REACHED, begin, build_trial
from tests.server.pages.conftest import fetch, serve
from zeusrun.history.sql.tokens import create_token

CANCEL = "/run/job-1-1/cancel"


@pytest.fixture
def running(store):
    """A run that has sent its log, on a server without tokens; yields the port."""
    trial = begin(store, build_trial())
    store.renew(trial.trial, {"log": ["step 1", "<b>step 2</b>"]})
    with serve(store) as port:
        yield port


@pytest.fixture
def guarded(store, running):
    """Return a function that makes the cookie of a new token of the same server."""

    def make(jobs="*", *, can_write=True):
        text, _ = create_token(store.engine, jobs, can_write=can_write)
        return f"zeusrun_token={text}"

    return make


def test_a_page_shows_the_end_of_the_log_of_a_run_that_goes_on(running, store):
    text = fetch(running, "/run/job-1-1").text
    assert "step 1\n&lt;b&gt;step 2&lt;/b&gt;\n</pre>" in text
    store.finish("job-1-1", REACHED)
    text = fetch(running, "/run/job-1-1").text
    assert "step 1" not in text
    assert "Cancel this run" not in text


def test_a_long_log_is_shown_to_its_end(running, store):
    lines = [f"{number:02}{'x' * 298}" for number in range(40)]
    store.renew("job-1-1", {"log": lines})
    text = fetch(running, "/run/job-1-1").text
    assert all(line in text for line in lines)


def test_a_run_is_cancelled_by_a_button(running, store):
    assert f'action="..{CANCEL}"' in fetch(running, "/run/job-1-1").text
    answer = fetch(running, CANCEL, "POST")
    assert (answer.status, answer.headers["Location"]) == (303, "../job-1-1#now")
    assert store.renew("job-1-1") is True
    text = fetch(running, "/run/job-1-1").text
    assert "Somebody has asked to cancel this run" in text
    assert f'action="..{CANCEL}"' not in text


def test_only_who_may_write_is_offered_the_button_and_may_cancel(running, guarded, store):
    reader, other, writer = (
        guarded(can_write=False),
        guarded("other"),
        guarded("job"),
    )
    assert "Cancel this run" not in fetch(running, "/run/job-1-1", Cookie=reader).text
    assert fetch(running, CANCEL, "POST", Cookie=reader).status == 403
    assert fetch(running, CANCEL, "POST", Cookie=other).status in {403, 404}
    assert fetch(running, CANCEL, "POST").status == 401
    assert store.renew("job-1-1") is False
    assert "Cancel this run" in fetch(running, "/run/job-1-1", Cookie=writer).text
    assert fetch(running, CANCEL, "POST", Cookie=writer).status == 303
    assert store.renew("job-1-1") is True


@pytest.mark.parametrize(
    "sent", [{"Sec_Fetch_Site": "cross-site"}, {"Origin": "http://evil.example"}]
)
def test_a_page_of_another_site_cancels_nothing(running, guarded, store, sent):
    for cookie in ({}, {"Cookie": guarded()}):
        assert fetch(running, CANCEL, "POST", **sent, **cookie).status == 403
    assert store.renew("job-1-1") is False


def test_who_may_cancel_by_the_origin_of_the_page(running, store):
    own, null = {"Origin": f"http://127.0.0.1:{running}"}, {"Origin": "null"}
    ours, foreign = {"Sec_Fetch_Site": "same-origin"}, {"Sec_Fetch_Site": "cross-site"}
    for sent in (null, {**null, **foreign}, {**own, **foreign}, {**null, "Sec_Fetch_Site": "none"}):
        assert fetch(running, CANCEL, "POST", **sent).status == 403, sent
    assert store.renew("job-1-1") is False
    for sent in (own, {}, ours, {**own, **ours}, {**null, **ours}):
        assert fetch(running, CANCEL, "POST", **sent).status in {303, 409}, sent
    assert store.renew("job-1-1") is True


def test_a_cookie_changes_nothing_else(running, guarded, store):
    cookie = guarded()
    assert fetch(running, "/api/v1/trials/job-1-1/cancel", "POST", Cookie=cookie).status == 401
    assert fetch(running, "/run/job-1-1", "POST", Cookie=cookie).status in {401, 405}
    assert fetch(running, CANCEL, "GET", Cookie=cookie).status in {404, 405}
    assert store.renew("job-1-1") is False


def test_a_run_that_is_not_there_is_not_cancelled(running):
    assert fetch(running, "/run/job-9-1/cancel", "POST").status == 404
