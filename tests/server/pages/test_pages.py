"""The pages as they are sent: well-formed, escaped, strict, and only what may be read."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

import sqlalchemy as sa

from tests.factories import begin, build_trial
from tests.server.pages.conftest import fetch, fetch_whole, open_store, serve
from tests.server.pages.values import EVIL, LIVE, SETTINGS, fill, host, named, trace
from tests.view.report.test_page import Checker
from tests.view.report.values import run, run_by_samples
from zeusrun.errors import HistoryError
from zeusrun.history.base import UnavailableError
from zeusrun.history.sql import survey
from zeusrun.history.sql.engine import writing
from zeusrun.history.sql.schema import HOSTS
from zeusrun.history.sql.store import SqlHistory
from zeusrun.history.sql.tokens import create_token
from zeusrun.server.pages import document, jobs, reports
from zeusrun.trial import TrialStatus
from zeusrun.view.report import page

PAGES = ["/", "/job/job", "/run/job-2-1", "/run/job-4-1", "/machines"]


class PageChecker(Checker):
    """Checks also that nothing is inline, and every address is relative."""

    def handle_starttag(self, name, attributes):
        super().handle_starttag(name, attributes)
        if name in {"img", "input", "source"}:
            self.open.pop()
        for key, value in attributes:
            assert key != "style"
            assert not key.startswith("on")
            if key in {"src", "srcset", "href", "action", "data-events"} and value != "data:,":
                assert not value.startswith("/")

    def handle_startendtag(self, name, attributes):
        self.handle_starttag(name, attributes)
        if name not in {"img", "input", "meta", "link", "source"}:
            self.handle_endtag(name)


def check(text):
    checker = PageChecker()
    checker.feed(text)
    assert checker.open == []
    assert len(checker.ids) == len(set(checker.ids))
    return checker


@pytest.fixture(scope="module")
def filled(empty_sqlite, tmp_path_factory):
    with open_store(empty_sqlite, tmp_path_factory.mktemp("pages") / "history.db") as store:
        fill(store)
        store.close()
        yield store


@pytest.fixture(scope="module")
def port(filled):
    with serve(filled) as opened:
        yield opened


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_well_formed_and_strict(port, path):
    answer = fetch(port, path)
    assert answer.status == 200
    checker = check(answer.text)
    assert (
        checker.tags.count("h1") == checker.tags.count("main") == checker.tags.count("script") == 1
    )
    assert "<script src=" in answer.text
    policy = answer.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", [*PAGES, "/runs"])
def test_what_a_cost_is_stands_once_on_a_page(port, path):
    assert fetch(port, path).text.count("maximum power · time") == 1


def test_every_saving_on_a_page_has_its_range(store):
    own = [run(n, 32, 1.0, price=0.3, currency="EUR", carbon_g=400.0) for n in range(1, 5)]
    own += [run(n, 64, 0.4, price=0.1, currency="EUR", carbon_g=100.0) for n in range(5, 20)]
    store.add(own)
    store.keep_settings("job", SETTINGS)
    with serve(store) as opened:
        fetch_whole(opened)
        for path in ("/", "/job/job"):
            text = fetch(opened, path).text.replace("\N{NO-BREAK SPACE}", " ")
            for saved in re.findall("[Ss]ave[sd] [0-9][^<;]*", text):
                assert re.match(r"[Ss]ave[sd] [^,(]+ \([^)]* to [^)]*\)", saved), saved
            assert "% less" not in text
        for amount, unit in (("energy", "kWh"), ("money", "EUR"), ("CO2e", "kg"), ("x", "kWh")):
            path = f"/?saved={amount}"
            jobs_ = fetch(opened, path).text.replace("\N{NO-BREAK SPACE}", " ")
            cells = re.findall(r'<span class="folds">([^<]+)</span>', jobs_)
            assert len(cells) == 2
            assert all(re.fullmatch(r"\S+ \S+ \([^)]+ to [^)]+\)", each) for each in cells)
            assert f" {unit} (" in cells[1]
            assert jobs_.count('aria-current="true"') == 1


def test_the_first_page_shows_what_runs_what_was_saved_and_every_job(port):
    text = fetch_whole(port)
    assert ">No saving can be shown yet (" in text
    for what in ("energy", "price", "carbon"):
        assert f"<dt>{what} of all runs</dt>" in text
    assert ": 3 recurrences, exploring included." in text
    assert 'href="run/job-4-1">job-4-1</a>' in text
    assert "2 epochs of at most 5" in text
    assert "321 W" in text
    for job in ("job", "other"):
        assert f'><a href="job/{job}">{job}</a></th>' in text


def test_a_job_has_its_report_its_belief_its_schedule_and_all_runs(port):
    text = fetch(port, "/job/job").text
    assert "no difference in cost can be shown yet (" in text
    assert "The next run uses batch size" in text
    assert "every day at 01:00" in text
    assert "the target was missed (exit code 4)" in text
    assert text.count('data-key="job-') == 5 + 1  # the rows of both tables
    assert 'href="../run/job-3-1"' in text
    assert "too few epochs" in text
    assert ">0.30 EUR</td>" in text
    assert ">400 g</td>" in text
    assert re.search(
        r"<dt>price of all runs</dt><dd>at least 0.60 EUR, known for 2 of 4 runs", text
    )
    assert re.search(r"<dt>carbon of all runs</dt><dd>at least 800 g CO2e, known for 2", text)


def test_a_job_without_settings_says_that_its_policy_is_unknown(port):
    assert "as for runs of Zeus&#x27;s own client" in fetch(port, "/job/other").text


def test_a_run_has_why_and_everything_and_a_running_one_its_numbers_so_far(port):
    text = fetch(port, "/run/job-2-1").text
    assert "32 is the default and comes first" in text
    assert '<a href="../job/job">job</a>' in text
    assert 'aria-label="The power of runs over time, with limits and throttling: job.' in text
    assert "<dt>price</dt><dd>0.30 EUR</dd>" in text
    assert "<dt>carbon</dt><dd>400 g CO2e</dd>" in text
    running = fetch(port, "/run/job-4-1").text
    assert "0.4" in running


def test_the_machines_have_gpus_runs_and_schedules(port):
    text = fetch(port, "/machines").text
    assert text.index("node-a") < text.index("node-b")
    assert "450 W" in text
    assert 'href="run/job-4-1">job-4-1</a>' in text
    assert "321 W" in text
    assert "every day at 01:00" in text


@pytest.mark.parametrize(
    "path", ["/job/nosuch", "/job/a%20b", "/run/nosuch-1-1", "/run/%00", "/run/x"]
)
def test_what_does_not_exist_is_a_page_that_says_so(port, path):
    answer = fetch(port, path)
    assert answer.status == 404
    check(answer.text)
    assert "There is no such" in answer.text or "There is no job" in answer.text


def test_a_page_that_has_not_changed_is_not_sent_again(port):
    first = fetch(port, "/run/job-1-1")
    again = fetch(port, "/run/job-1-1", If_None_Match=first.headers["ETag"])
    assert (again.status, again.text) == (304, "")
    assert fetch(port, "/run/job-1-1", "HEAD").status == 200


def test_figures_are_drawn_once_for_each_state_of_a_job_in_the_colours_of_the_theme(
    store, monkeypatch
):
    drawn = []
    draw = page.draw
    monkeypatch.setattr(page, "draw", lambda name, *rest: drawn.append(name) or draw(name, *rest))
    fill(store)
    with serve(store) as port:
        text = fetch(port, "/job/job").text
        assert text.count("<svg ") == 4
        assert 'stroke="var(--muted)"' in text
        fetch(port, "/job/job")
        assert sorted(each for each in drawn if each != "noise") == [
            *("arms", "cost", "curves", "power")
        ]
        store.keep_trace("job-1-1", trace().to_json())
        fetch(port, "/job/job")
        assert drawn.count("power") == 2
        assert drawn.count("cost") == 1
        store.add([run(6, 32)])
        fetch(port, "/job/job")
        assert drawn.count("cost") == 2


def test_without_matplotlib_the_page_says_how_to_get_figures(port, monkeypatch):
    monkeypatch.setattr(document, "can_draw", lambda: False)
    text = fetch(port, "/job/job").text
    assert "<svg" not in text
    assert "extra &#x27;report&#x27;: pip install &#x27;/path/to/zeusrun[report]&#x27;" in text
    assert "Table of the recurrences" in text


def test_static_files_are_kept_by_the_browser(port):
    addresses = re.findall(r'(?:href|src)="(static/[^"]+)"', fetch(port, "/").text)
    assert len(addresses) == 2
    for address in addresses:
        answer = fetch(port, f"/{address}")
        assert "immutable" in answer.headers["Cache-Control"]
        assert answer.text
    assert fetch(port, "/static/router.py").status == 404
    assert fetch(port, "/static/..%2frouter.py").status == 404


def test_only_what_may_be_read_is_shown(store):
    fill(store)
    token, _ = create_token(store.engine, "other", can_write=False, lasts_s=None)
    with serve(store) as port:

        def read(path):
            return fetch(port, path, Authorization=f"Bearer {token}")

        for path in ("/", "/machines"):
            text = read(path).text
            assert "other" in text
            assert "job/job" not in text
            assert "job-4-1" not in text
        hidden = ("/job/job", "/run/job-1-1")
        assert [read(path).status for path in (*hidden, "/version?job=job")] == [404] * 3
        assert read("/run/job-1-1").text == read("/run/nosuch-1-1").text
        assert read("/job/other").status == 200


def test_whatever_a_script_a_host_or_a_client_says_is_text(store):
    evil = {"metric": EVIL, "reason": EVIL, "variant": EVIL, "gpu_model": EVIL, "why": EVIL}
    evil |= {"currency": EVIL, "price": 1.0, "host": EVIL, "warnings": (EVIL,), "cause": EVIL}
    evil |= {"run_dir": "/" + EVIL}
    store.add([run(1, 32), run(2, 64, 0.5, **evil)])
    store.keep_settings("job", EVIL)
    store.keep_trace("job-2-1", {**trace().to_json(), "throttled": {EVIL: 0.5}})
    begin(store, build_trial(3, metric=EVIL, host=EVIL))
    store.renew("job-3-1", {**LIVE, "trial": "job-3-1", "host": EVIL, "updated_at": EVIL})
    facts = host("job", model=EVIL, held_by=EVIL, error=EVIL, energy_source=EVIL)
    facts["gpus"][0]["throttle_reasons"] = [EVIL]
    facts["schedules"][0] |= {"words": EVIL, "next": [EVIL], "last_run": EVIL}
    store.report_host("</script><script>alert(1)</script>", {**facts, "version": EVIL})
    with serve(store) as port:
        paths = ("/", "/job/job", "/run/job-2-1", "/run/job-3-1", "/machines", "/?q=%3Cscript%3E")
        for path in paths:
            answer = fetch(port, path)
            assert answer.status == 200, path
            checker = check(answer.text)
            assert checker.tags.count("script") == 1
            assert not re.search("[\x00\x1b\u202e]", answer.text)


def test_a_machine_may_report_anything(store):
    store.add([run(1, 32)])
    with serve(store) as port:
        for facts in (
            {},
            {"gpus": 3, "schedules": "x", "version": 7},
            {"gpus": [None, 3, {}], "schedules": [{}, {"job": 3}, {"job": "x", "next": [3]}]},
            {"gpus": [{"power_w": "x", "utilization": 1e300, "throttle_reasons": {}, "model": []}]},
            {"gpus": [{"power_w": 10**400, "nvml_index": 10**400, "temperature_c": True}]},
            {"gpus": [{"utilization": 1e308, "power_w": "inf"}]},
            {"gpus": [{"model": "x" * 300}] * 500},
            {"schedules": [{"job": "../x", "next": {}, "last_run": 4}]},
        ):
            store.report_host("node", facts)
            for path in ("/machines", "/job/job"):
                answer = fetch(port, path)
                assert answer.status == 200, facts
                check(answer.text)


def test_a_value_of_a_machine_that_cannot_be_hides_no_other(store):
    store.add([run(1, 32)])
    facts = host("job", power_w="nan")
    facts["schedules"].append({"job": 3})
    store.report_host("node", facts)
    with serve(store) as port:
        text = fetch(port, "/machines").text
    assert "H100" in text
    assert "every day at 01:00" in text
    assert "nan" not in text


def test_a_heartbeat_may_say_anything_and_changes_no_name(store):
    begin(store, build_trial(1))
    with serve(store) as port:
        for live in (
            {"curve": 3},
            {"trial": "other-1-1", "job": "other", "status": "REACHED"},
            {"job": "other", "recurrence": 9, "status": "REACHED", "run_dir": "/other-1-1"},
            {"power_w": "x", "host": 3, "updated_at": 4},
            {"power_w": 10**400},
            {"power_w": "nan", "epochs": -1},
            {"epochs": 10**9, "curve": [[1, 1.0, None, None]]},
            {"curve": [[1, 1.0, None, -1e308], [2, 2.0, None, 1e308]]},
        ):
            store.renew("job-1-1", {**LIVE, "trial": "job-1-1", **live})
            for path in ("/", "/job/job", "/run/job-1-1", "/metrics"):
                answer = fetch(port, path)
                assert answer.status == 200, live
                assert not re.search("other-1-1|nan|no heartbeat", answer.text), live


@pytest.mark.parametrize(
    "damage", [{"cost_j": 1e308}, {"epochs": 1 << 53}, {"cost_j": 0.0, "epochs": 0}]
)
def test_numbers_that_no_run_can_have_break_no_page(store, damage):
    store.add([*(run(n, 32) for n in range(1, 5)), run(5, 32, **damage), run(6, 32)])
    with serve(store) as port:
        for path in ("/", "/job/job", "/run/job-5-1"):
            for _ in range(2):
                assert fetch(port, path).status == 200
        assert "costs the same" not in fetch(port, "/job/job").text
        assert "No run has ended yet" not in fetch(port, "/job/job").text


def test_a_history_that_cannot_be_read_is_a_page_that_comes_back(store, monkeypatch):
    def fail(*_):
        raise ValueError("math domain error")

    store.add([run(1, 32)])
    monkeypatch.setattr(reports, "build_facts", fail)
    with serve(store) as port:
        for _ in range(2):
            answer = fetch(port, "/job/job")
            assert answer.status == 503
            assert "cannot be read now" in answer.text
        assert fetch(port, "/").status == 200
        monkeypatch.undo()
        assert fetch(port, "/job/job").status == 200


def test_of_a_long_history_the_page_says_what_counts_the_newest_runs_only(store, monkeypatch):
    for module in (jobs, reports):
        monkeypatch.setattr(module, "NEWEST", 3)
    store.add([run(n, 32) for n in range(1, 4)])
    with serve(store) as port:
        assert "The sums count" not in fetch(port, "/job/job").text
        store.add([run(4, 32)])
        note = "The sums count all 4 runs; figures, comparisons and tables count the newest 3."
        assert note in fetch(port, "/job/job").text


def test_machines_that_are_gone_or_report_too_much_are_not_listed(store):
    for name in ("here", "gone"):
        store.report_host(name, host("job"))
    store.report_host("large", {"version": "x" * 70_000})
    with writing(store.engine) as connection:
        old = sa.update(HOSTS).where(HOSTS.c.host == "gone").values(updated_at=1e9)
        connection.execute(old)
    with serve(store) as port:
        text = fetch(port, "/machines").text
        assert "<h2>here</h2>" in text
        assert "<h2>gone</h2>" not in text
        assert "<h2>large</h2>" not in text
        assert ">1</a></dd>" in fetch(port, "/").text


def test_launchers_do_not_wait_for_pages(store, monkeypatch):
    store.add([run(1, 32)])
    waiting, go_on = threading.Semaphore(0), threading.Event()

    def wait(*_):
        waiting.release()
        assert go_on.wait(300)
        raise UnavailableError

    monkeypatch.setattr(survey, "list_heads", wait)
    with serve(store) as port, ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(fetch, port, "/") for _ in range(20)]
        assert all(waiting.acquire(timeout=300) for _ in range(4))
        assert fetch(port, "/api/v1/jobs").status == 200
        assert not waiting.acquire(blocking=False)
        go_on.set()
        assert {each.result().status for each in asked} == {503}


def test_the_first_page_says_if_exploring_has_cost_more_than_it_saved(store):
    priced = {"price": 0.3, "currency": "EUR", "carbon_g": 400.0}
    tried = {"price": 0.9, "currency": "EUR", "carbon_g": 1200.0}
    lost = run(2, 64, 3.0, status=TrialStatus.STOPPED, **tried)
    store.add([run(1, 32, **priced), lost, run(2, 32, attempt=2, **priced)])
    with serve(store) as port:
        text = fetch_whole(port).replace("\N{NO-BREAK SPACE}", " ")
    assert (
        '<span class="bad">Spent 3.00 kWh of energy, 0.90 EUR, 1.20 kg CO2e more than always using the default'
        in text
    )
    assert ": 2 recurrences, exploring included." in text


def test_the_recurrences_of_a_span_of_time_can_be_chosen(store):
    store.add(
        [run(n, 32, 1.0 + n / 100, started_at=f"2026-{n:02}-01T12:00:00Z") for n in (1, 2, 3)]
    )
    store.add([run(4, 32, 2.0, started_at="2026-03-25T12:00:00Z")])
    with serve(store) as port:
        counts = {}
        for since in ("", "all-time", "90-days", "30-days", "7-days", "x"):
            text = fetch(port, f"/job/job?since={since}").text
            part = text.partition('id="recurrences"')[2].partition("</section>")[0]
            counts[since] = part.count('<th scope="row">')
            current = re.findall(r'aria-current="true">([^<]*)', part)
            assert current == [
                since.replace("-", " ") if since in {"90-days", "30-days", "7-days"} else "all time"
            ]
            figure = part.partition("<metadata>")[2].partition("</metadata>")[0]
            assert figure.count("of cost") == counts[since]
        assert counts == {"": 4, "all-time": 4, "90-days": 4, "30-days": 2, "7-days": 1, "x": 4}
        kept = fetch(port, "/job/job?since=30-days&sort=cost").text
        assert 'name="since" value="30-days"' in kept
        assert "?since=30-days&amp;sort=-cost#runs" in kept


def test_an_empty_history_says_what_to_do(store):
    with serve(store) as port:
        text = fetch(port, "/").text
        assert "No run has been sent here yet" in text
        assert "zeusrun connect" in text
        assert "No machine has reported yet" in fetch(port, "/machines").text


@pytest.mark.parametrize("kind", [UnavailableError, HistoryError])
def test_a_database_that_is_gone_or_refuses_is_a_page_that_comes_back(store, monkeypatch, kind):
    def fail(*_):
        raise kind("the database postgresql://someone:secret@host/history does not respond")

    monkeypatch.setattr(survey, "read_versions", fail)
    monkeypatch.setattr(SqlHistory, "changes", fail)
    with serve(store) as port:
        answer = fetch(port, "/")
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "5"
        assert "Traceback" not in answer.text
        assert "secret" not in answer.text
        assert "postgresql" not in answer.text
        check(answer.text)
        assert fetch(port, "/job/job").status == 503


def test_lists_have_pages_and_jobs_can_be_found(store, monkeypatch):
    monkeypatch.setattr(jobs, "JOBS_SHOWN", 10)
    store.add([run(n, 32, 1.0 + n / 1000) for n in range(1, 121)])
    store.add([named(f"many-{number:03d}", run(1, 32)) for number in range(13)])
    with serve(store) as port:
        text = fetch(port, "/job/job").text
        assert "<caption>15 of 120 runs</caption>" in text
        seen = []
        while True:
            seen += re.findall(r'<tr data-key="(job-\d+-1)"', text)
            after = re.search(r'href="(\.\./job/job\?page=\d+)#runs">next', text)
            if after is None:
                break
            text = fetch(port, after[1].removeprefix("..")).text
        assert seen == [f"job-{n}-1" for n in range(120, 0, -1)]
        first = fetch(port, "/").text
        assert first.count("<tr data-key=") == 10
        assert "Page 1 of 2" in first
        assert fetch(port, "/?page=2").text.count("<tr data-key=") == 4
        assert fetch(port, "/?page=99").text.count("<tr data-key=") == 4
        found = fetch(port, "/?q=MANY-01").text
        assert re.findall(r'<tr data-key="([\w-]+)"', found) == ["many-012", "many-011", "many-010"]
        assert "No job name contains this text" in fetch(port, "/?q=nosuch").text
        assert fetch(port, "/?page=0").text.count("<tr data-key=") == 10


def test_pages_of_a_job_that_is_compared_by_samples_speak_of_samples(store):
    store.add(
        [
            run(1, 32, samples=600, whole_samples=600, whole_steps=100),
            run_by_samples(2, 64),
            run_by_samples(3, 64),
        ]
    )
    begin(store, build_trial(4))
    points = [[100_000, 10.0, 1e5, 0.2], [200_000, 20.0, 2e5, 0.4]]
    now = {"curve": [[1, *points[-1][1:]]], "epochs": 1, "by_samples": points}
    now |= {"samples": 200_000, "whole_samples": 200_000}
    store.renew("job-4-1", {**LIVE, **now})
    with serve(store) as port:
        text = fetch(port, "/job/job").text
        assert ">epochs<" not in text
        assert ">200,000</td>" in text
        for path in ("/", "/run/job-4-1"):
            assert "<td>200,000 samples</td>" in fetch(port, path).text
        page = fetch(port, "/run/job-2-1").text
        assert "Table of the reports" in page
        assert "<dt>samples</dt><dd>200,000</dd>" in page
        assert page.count("<tr") >= 6
        assert ">samples</text>" in page
        assert "Table of the epochs" in fetch(port, "/run/job-1-1").text  # it has one an epoch
