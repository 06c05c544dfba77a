"""Server-sent events: who is told of which change."""

from __future__ import annotations

import http.client
import re

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

from tests.factories import REACHED, begin, build_trial
from tests.server.pages.conftest import fetch, serve
from tests.server.pages.values import LIVE, host, named
from tests.view.report.values import run
from zeusrun.server.pages import changes


@pytest.fixture
def port(store, monkeypatch):
    monkeypatch.setattr(changes, "POLL_S", 0.05)
    store.add([run(1, 32), named("other", run(1, 32))])
    with serve(store) as opened:
        yield opened


class Listener:
    """Reads the events of a page."""

    def __init__(self, port, path, **headers):
        address = path
        if "events" not in path:
            page = fetch(port, path).text
            address = re.search(r'data-events="([^"]+)"', page)[1].replace("&amp;", "&")
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        self._connection.request("GET", "/" + address.removeprefix("../"), headers=headers)
        self.answer = self._connection.getresponse()

    def next(self):
        """Return the next event."""
        while True:
            line = self.answer.readline().decode()
            if line.startswith("event: "):
                return self.answer.readline().decode().removeprefix("id: ").strip()

    def close(self):
        self._connection.close()


def test_a_page_is_told_of_a_run_that_begins_beats_and_ends(store, port):
    listener = Listener(port, "/job/job")
    assert listener.answer.headers["Content-Type"].startswith("text/event-stream")
    assert listener.answer.headers["X-Accel-Buffering"] == "no"
    seen = []
    begin(store, build_trial(2))
    seen.append(listener.next())
    store.renew("job-2-1", LIVE)
    seen.append(listener.next())
    store.finish("job-2-1", REACHED)
    seen.append(listener.next())
    assert len(set(seen)) == 3
    listener.close()


def test_a_page_is_told_of_its_own_job_alone_and_the_first_page_of_everything(store, port):
    own, all_ = Listener(port, "/job/job"), Listener(port, "/machines")
    store.add([named("other", run(2, 32))])
    assert all_.next()
    store.report_host("node", host("job"))
    assert all_.next()
    store.add([run(2, 32)])
    changes = fetch(port, "/job/job").text
    assert own.next() in changes.replace("%3A", ":")  # the first event is the last change
    own.close()
    all_.close()


def test_what_changed_while_the_page_was_on_its_way_is_told_at_once(store, port):
    address = re.search(r'data-events="([^"]+)"', fetch(port, "/").text)[1]
    store.add([run(2, 32)])
    listener = Listener(port, address.replace("&amp;", "&"))
    assert listener.next()
    listener.close()


def test_a_browser_that_connects_again_says_what_it_has_seen(store, port):
    listener = Listener(port, "/job/job")
    store.add([run(2, 32)])
    seen = listener.next()
    listener.close()
    again = Listener(port, "/job/job", **{"Last-Event-ID": seen})
    store.add([run(3, 32)])
    assert again.next() != seen
    again.close()


def test_too_many_listeners_are_refused(port, monkeypatch):
    from zeusrun.server.pages import router

    monkeypatch.setattr(router, "MOST", 0)
    assert fetch(port, "/events").status == 503


def test_an_unknown_job_has_no_events(port):
    assert fetch(port, "/events?job=../x").status == 404
