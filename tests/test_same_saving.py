"""Wherever a saving is told, it is the same number, with the same range."""

from __future__ import annotations

import csv
import io
import json
import time
from dataclasses import replace

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("matplotlib")
pytest.importorskip("sqlalchemy")

from tests.factories import DONE
from tests.server.pages.conftest import fetch, serve
from zeusrun.analysis.estimates import SAVED
from zeusrun.analysis.savings import find_net_amounts, find_savings
from zeusrun.view.claims import claim_cost, claim_in_use, net_text, short_share


@pytest.fixture
def trials(record):
    lasts = [4.0] * 3 + [2.2, 1.9] * 4  # seconds
    sizes = [32] * 3 + [16] * 8
    return [
        record(
            number,
            replace(DONE, time_s=each, energy_j=10 * each, cost_j=20 * each, carbon_g=each),
            global_batch_size=size,
        )
        for number, (each, size) in enumerate(zip(lasts, sizes, strict=True), 1)
    ]


def test_every_place_tells_the_same_saving(trials, cli, zeusrun, sql_history):
    savings = find_savings(trials)
    claim = claim_in_use(savings)
    share = claim.removeprefix("batch size 16 ").removesuffix(" against 32")
    assert savings.share.is_shown
    net = net_text(find_net_amounts(trials, savings), savings.net)
    history, report = cli("history", "job")[1], zeusrun.folder / "report.html"
    assert share in history
    assert claim_cost(savings.net) in history

    assert cli("report", "job", "-o", report)[0] == 0
    told = json.loads(cli("report", "job", "--format", "json")[1])["jobs"][0]
    sql_history.add(trials)
    with serve(sql_history) as port:
        while "data-pending" in (first := fetch(port, "/").text):
            time.sleep(0.02)
        pages = [first, fetch(port, "/job/job").text]
    for text in (report.read_text(), *pages):
        plain = text.replace("\N{NO-BREAK SPACE}", " ")
        assert share[1:] in plain or short_share(savings.share) in plain
    assert told["headline"].replace("\N{NO-BREAK SPACE}", " ").startswith(f"batch size 16 {share}")
    assert net[1:] in report.read_text().replace("\N{NO-BREAK SPACE}", " ")

    rows = json.loads(cli("history", "--json")[1])
    table = list(csv.DictReader(io.StringIO(cli("history", "--csv")[1])))
    for row, line, each in zip(rows, table, savings.by_trial.values(), strict=True):
        ends = [each.value, each.low, each.high]
        assert [row[name] for name in SAVED] == pytest.approx(ends)
        assert [float(line[name]) for name in SAVED] == pytest.approx(ends)
    prometheus = cli("export", "--format", "prometheus")[1]
    for name, amount in zip(
        ("", "_low", "_high"), (savings.net.value, savings.net.low, savings.net.high), strict=True
    ):
        (line,) = (
            each
            for each in prometheus.splitlines()
            if each.startswith(f"zeusrun_saved{name}_joules{{")
        )
        assert float(line.rpartition(" ")[2]) == pytest.approx(amount)
