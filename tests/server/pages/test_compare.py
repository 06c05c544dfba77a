"""Two batch sizes side by side."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")

from tests.factories import begin, build_trial
from tests.server.pages.conftest import fetch, fetch_whole, open_store, serve
from tests.server.pages.test_pages import check
from tests.server.pages.values import LIVE, fill, named
from tests.view.report.values import run
from zeusrun.analysis.savings import compare_sizes, find_savings
from zeusrun.history.sql.tokens import create_token
from zeusrun.trial import EnergySource, TrialStatus
from zeusrun.view.claims import claim_against

CHEAP = [run(n, 32, 1.0 + n / 100) for n in range(1, 5)]
CHEAP += [run(n, 64, 0.5 + n / 100) for n in range(5, 14)]
SIZES = "/compare?job=job&size=32&size=64"


@pytest.fixture(scope="module")
def port(empty_sqlite, tmp_path_factory):
    with open_store(empty_sqlite, tmp_path_factory.mktemp("compare") / "history.db") as store:
        fill(store)
        store.add([named("cheap", each) for each in CHEAP])
        store.close()
        with serve(store) as opened:
            fetch_whole(opened)
            yield opened


def plain(text):
    return re.sub("<[^>]+>", " ", text).replace("\N{NO-BREAK SPACE}", " ")


def row(text, name):
    found = re.search(rf"<tr[^>]*><th[^>]*>{name}</th>(.*?)</tr>", text)
    cells = re.sub('<span class="folds">([^<]*)</span>', r"\1", found[1]) if found else ""
    return re.findall("<td[^>]*>(.*?)</td>", cells.replace("\N{NO-BREAK SPACE}", " ")) or None


def test_two_batch_sizes_share_a_figure_in_two_colours(port):
    text = fetch(port, SIZES).text
    check(text)
    (address,) = re.findall(r'src="(compare/curves\.svg\?[^"]*theme=light[^"]*)"', text)
    answer = fetch(port, "/" + address.replace("&amp;", "&"))
    assert answer.headers["Content-Type"] == "image/svg+xml"
    assert "immutable" in answer.headers["Cache-Control"]
    assert ">32</text>" in answer.text
    assert ">64</text>" in answer.text


def test_measured_and_estimated_energy_are_not_compared(store):
    store.add([run(1, 32), run(2, 64, 0.5, energy_source=EnergySource.ESTIMATED)])
    with serve(store) as port:
        assert fetch(port, SIZES).status == 404  # the newest runs have another kind of energy


def test_batch_sizes_are_compared_by_the_rule_of_the_history(port):
    saved, energy = compare_sizes(CHEAP, 64, 32)
    assert saved == find_savings(CHEAP).share
    for query in ("size=32&size=64", "size=64&size=032"):  # against the default
        text = fetch(port, f"/compare?job=cheap&{query}").text
        check(text)
        assert f"Batch size 64 {claim_against(saved, '', '32').strip()}" in plain(text)
        assert (
            f"Of energy alone: {claim_against(energy, 'batch size 64', 'batch size 32', 'energy')}."
            in plain(text)
        )
    assert row(text, "runs")[:2] == ["4", "9"]
    assert row(text, "cost")[0] == "3.69 MJ (3.64 MJ to 3.74 MJ)"
    assert row(text, "time")[2] == "–"  # noqa: RUF001
    assert row(text, "cost")[2].startswith("−")  # noqa: RUF001
    for name in ("compare", "curves"):
        assert fetch(port, f"/compare/{name}.svg?job=cheap&size=32&size=64").status == 200


def test_a_difference_that_may_be_none_is_not_claimed(port):
    text = plain(fetch(port, "/compare?job=job&size=32&size=64").text)
    assert "Batch size 64 against 32: no difference in cost can be shown yet (" in text
    assert "saves" not in text


def test_two_other_batch_sizes_are_compared_with_each_other(store):
    third = [run(n, 128, 0.25 + n / 1000) for n in range(14, 24)]
    store.add([*CHEAP, *third])
    with serve(store) as port:
        text = plain(fetch(port, "/compare?job=job&size=64&size=128").text)
    share, _ = compare_sizes([*CHEAP, *third], 128, 64)
    assert share.low > 0
    assert f"atch size 128 saves {100 * share.value:.0f} % of the cost of a run" in text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "Choose two batch sizes of a job; the address names none."),
        ("?job=job&job=other", "Choose two batch sizes of a job; the address names none."),
        ("?job=job&size=32&size=32", "Choose two batch sizes of a job; the address names 1."),
        ("?job=job&size=1&size=2&size=3", "the address names 3."),
        ("?job=%00&size=32&size=64", "There is no such job"),
        ("?job=nosuch&size=32&size=64", "There is no job called nosuch."),
        ("?job=..%2Fx&size=32&size=64", "There is no such job"),
        ("?job=job&size=32", "Choose two batch sizes"),
        ("?size=32&size=64", "There is no such job"),
        ("?job=job&size=32&size=9999", "job has no run of batch size 9999 that has ended"),
        ("?job=job&size=32&size=x%3Cscript%3E", "job has no run of batch size x&lt;script&gt;"),
        ("?job=job&size=32&size=" + "9" * 5000, "job has no run of batch size 99"),
        ("?job=job&size=32&size=00", "job has no run of batch size 0 that has ended"),
        ("?job=job&size=32&size=%D9%A3%D9%A2", "job has no run of batch size ٣٢"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(port, query, said):
    answer = fetch(port, f"/compare{query}")
    assert answer.status == 404
    assert check(answer.text).tags.count("script") == 1
    assert said in answer.text
    assert fetch(port, f"/compare/curves.svg{query}").status == 404


@pytest.mark.parametrize("page", ["job/job", "run/job-1-1"])
def test_a_comparison_is_no_figure_of_one_job_or_run(port, page):
    assert fetch(port, f"/{page}/compare.svg").status == 404


def test_only_what_may_be_read_is_compared(store):
    fill(store)
    token, _ = create_token(store.engine, "other", can_write=False, lasts_s=None)
    with serve(store) as port:

        def read(path):
            return fetch(port, path, Authorization=f"Bearer {token}")

        hidden = (SIZES, "/compare/compare.svg?job=job&size=32&size=64")
        assert [read(path).status for path in hidden] == [404] * 2
        assert fetch(port, SIZES, Accept="text/html").status == 303  # to sign in


def test_numbers_that_no_run_can_have_break_no_comparison(store):
    damaged = run(2, 64, cost_j=0.0, epochs=0)
    store.add([run(1, 32), damaged, run(3, 64, status=TrialStatus.OOM), run(4, 64, curve=())])
    begin(store, build_trial(5))
    store.renew("job-5-1", {**LIVE, "trial": "job-5-1", "power_w": "x"})
    with serve(store) as port:
        assert fetch(port, SIZES).status == 200


def test_a_job_of_which_no_run_has_ended_has_no_batch_sizes_to_compare(store):
    store.add([run(1, 32)])
    begin(store, build_trial(1, job="other"))
    with serve(store) as port:
        assert fetch(port, "/compare?job=other&size=32&size=64").status == 404
