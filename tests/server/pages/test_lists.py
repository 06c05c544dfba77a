"""Lists in the address: sorted, searched, in pages; a view is a link."""

from __future__ import annotations

import html
import re

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

from tests.server.pages.conftest import fetch, fetch_whole, open_store, serve
from tests.server.pages.test_pages import check
from tests.server.pages.values import named
from tests.view.report.values import run
from zeusrun.history.sql.tokens import create_token
from zeusrun.server.pages import jobs
from zeusrun.trial import EnergySource, TrialStatus


@pytest.fixture(scope="module")
def port(empty_sqlite, tmp_path_factory):
    with open_store(empty_sqlite, tmp_path_factory.mktemp("lists") / "history.db") as store:
        own = [
            run(1, 32, 3.0, host="node-a", started_at="2026-03-01T23:30:00+00:00"),
            run(2, 64, 1.0, host="node-b", started_at="2026-03-02T12:00:00+00:00"),
            run(3, 64, 2.0, host="node-b", gpu_model="H100", status=TrialStatus.FAILED),
            run(4, 128, None, cost_j=None, status=TrialStatus.LOST),
        ]
        store.add([*own, named("other", run(1, 32, 9.0)), named("alpha", run(1, 32, 5.0))])
        store.close()
        with serve(store) as opened:
            yield opened


def rows(text):
    return re.findall(r'<tr data-key="([\w-]+)"', text)


def listed(port, query):
    answer = fetch(port, f"/job/job{query}")
    assert answer.status == 200
    check(answer.text)
    return [int(name.split("-")[1]) for name in rows(answer.text)]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", [4, 3, 2, 1]),
        ("?sort=run", [1, 2, 3, 4]),
        ("?sort=cost", [2, 3, 1, 4]),
        ("?sort=-cost", [1, 3, 2, 4]),
        ("?sort=host&q=node", [1, 3, 2]),
        ("?q=FAILED", [3]),
        ("?q=64&sort=run", [2, 3]),
        ("?q=h1", [3]),
        ("?q=node-b+reached+64", [2]),
        ("?q=job-3", [3]),
        ("?q=nosuch", []),
        ("?q=" + "9" * 30, []),
    ],
)
def test_an_address_says_which_runs_are_shown_and_in_which_order(port, query, found):
    assert listed(port, query) == found


@pytest.mark.parametrize(
    "query",
    [
        *(
            "?sort=nosuch",
            "?sort=-",
            "?page=0",
            "?page=-1",
            "?page=x",
            "?page=99",
            "?page=" + "9" * 300,
        ),
        *("?sort=cost%00", "?page=%F0%90", "?before=3", "?q=%00", "?q=", "?page=1&page=2"),
    ],
)
def test_what_is_no_order_and_no_page_is_the_default(port, query):
    assert listed(port, query) == [4, 3, 2, 1]


def headings(text, place):
    part = text[text.index(f'id="{place}"') :]
    found = re.findall(r"<th([^>]*scope=\"col\"[^>]*)><a href=\"([^\"]*)\">([^<]*)</a></th>", part)
    return {
        name: (html.unescape(address), re.findall('aria-sort="([a-z]+)"', attributes))
        for attributes, address, name in found
    }


def test_a_heading_shows_the_order_and_is_a_link_to_the_other_one(port):
    found = headings(fetch(port, "/job/job?q=node&sort=cost").text, "runs")
    assert found["cost"] == ("../job/job?q=node&sort=-cost#runs", ["ascending"])
    assert found["host"] == ("../job/job?q=node&sort=host#runs", [])
    assert found["time"] == ("../job/job?q=node&sort=-time#runs", [])
    assert found["run"] == ("../job/job?q=node#runs", [])
    back = headings(fetch(port, "/job/job").text, "runs")
    assert back["run"] == ("../job/job?sort=run#runs", ["descending"])


def test_every_heading_sorts(port):
    for place, path in (("runs", "/job/job"), ("runs", "/runs")):
        for address, _ in headings(fetch(port, path).text, place).values():
            answer = fetch(port, path + address.removeprefix("runs").removeprefix("../job/job"))
            assert answer.status == 200
            assert answer.text.count("aria-sort") == 1


def test_the_form_keeps_the_order_and_the_pages_keep_both(port, monkeypatch):
    monkeypatch.setattr(jobs, "_RUNS_SHOWN", 1)
    text = fetch(port, "/job/job?q=node&sort=cost&page=2").text
    assert '<input type="hidden" name="sort" value="cost">' in text
    assert 'name="q" value="node"' in text
    assert "Page 2 of 3" in text
    for page, name in ((None, "previous"), (3, "next")):
        query = "q=node&amp;sort=cost" + (f"&amp;page={page}" if page else "")
        assert f'<a href="../job/job?{query}#runs">{name}</a>' in text
    assert '<a href="../job/job#runs">show all</a>' in text


def test_jobs_are_sorted_by_name_runs_energy_and_saving(port):
    fetch_whole(port)
    first = lambda query: rows(fetch(port, f"/{query}").text)  # noqa: E731
    assert first("?sort=job") == ["alpha", "job", "other"]
    assert first("?sort=-job") == ["other", "job", "alpha"]
    assert first("?sort=-energy") == ["other", "job", "alpha"]
    assert first("?sort=runs")[-1] == "job"
    assert first("?sort=when") == first("")[::-1] == ["other", "alpha", "job"]
    assert first("?sort=nosuch&page=0") == first("")
    assert first("?q=LPH&sort=-job") == ["alpha"]
    assert "No job name contains this text." in fetch(port, "/?q=nosuch").text
    for sort in jobs.JOB_SORTS:
        assert sorted(first(f"?sort={sort}")) == ["alpha", "job", "other"]


def test_the_job_that_ran_last_comes_first(store):
    for job, day in (("sooner", 1), ("latest", 3), ("later", 2)):
        store.add([named(job, run(1, 32, 1.0, started_at=f"2026-03-0{day}T12:00:00+00:00"))])
    with serve(store) as port:
        assert rows(fetch(port, "/").text) == ["latest", "later", "sooner"]
        assert rows(fetch(port, "/?sort=when").text) == ["sooner", "later", "latest"]


def test_a_saving_that_may_be_none_counts_as_none_when_jobs_are_sorted(store):
    def several(job, other, count):
        runs_ = [run(n, 32, 1.0) for n in range(1, 4)]
        return [
            named(job, each) for each in (*runs_, *(run(n, 64, other) for n in range(4, count)))
        ]

    store.add([*several("saves", 0.5, 12), *several("costs", 2.0, 12), *several("unsure", 0.95, 5)])
    with serve(store) as port:
        fetch_whole(port)
        assert rows(fetch(port, "/?sort=-saved-a-run").text) == ["saves", "unsure", "costs"]
        text = fetch(port, "/").text.replace("\N{NO-BREAK SPACE}", " ")
    assert re.search(r"<span>?<?[^<]*not shown \([^)]* to [^)]* %\)", text)
    assert re.search(r'<span class="good"><span class="folds">\d+ % \(\d+ to \d+ %\)</span>', text)


def test_the_runs_of_all_jobs_are_one_list_of_those_that_may_be_seen(port, store):
    assert rows(fetch(port, "/runs?sort=-energy").text)[:2] == ["other-1-1", "alpha-1-1"]
    store.add([run(1, 32), named("other", run(1, 32))])
    token, _ = create_token(store.engine, "other", can_write=False, lasts_s=None)
    with serve(store) as own:
        text = fetch(own, "/runs", Authorization=f"Bearer {token}").text
    assert rows(text) == ["other-1-1"]
    assert "1 of 1 run<" in text


def test_what_is_typed_is_text(port):
    evil = "%22%3E%3Cscript%3Ealert(1)%3C/script%3E"
    for path in (f"/?q={evil}", f"/job/job?q={evil}", f"/runs?q={evil}"):
        answer = fetch(port, path)
        assert answer.status == 200
        assert check(answer.text).tags.count("script") == 1


def test_estimated_energy_is_marked_in_a_sorted_list(store):
    store.add([run(1, 32), run(2, 32, energy_source=EnergySource.ESTIMATED)])
    with serve(store) as port:
        assert ">~1.00 kWh</td>" in fetch(port, "/job/job?sort=-energy").text
