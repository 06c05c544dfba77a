"""What is worth telling about a script while it runs."""

from __future__ import annotations

from tests.launcher.values import after, report
from zeusrun.launcher.remarks import find_remarks


def remarks(*events, stops_at_target=True):
    return find_remarks(after(*events), "accuracy", stops_at_target=stops_at_target)


def test_a_good_script_gives_no_cause():
    assert remarks() == {}
    assert remarks(report(101.0, 1, 0.1), report(102.0, 2, 0.6)) == {}


def test_a_report_without_the_metric_names_what_it_has():
    (text,) = remarks(report(101.0, 1, loss=2.0, acuracy=0.1)).values()
    assert text.startswith("the first report has no 'accuracy'; it has acuracy, loss.")
    assert remarks(report(101.0, 1, loss=2.0), report(102.0, 2, 0.1)) == {}


def test_a_script_that_trains_past_the_target_is_told_what_to_change():
    past = [report(101.0, 1, 0.6), report(102.0, 2, 0.7)]
    (text,) = remarks(*past).values()
    assert "`if run.should_stop(): break`" in text
    assert remarks(*past, stops_at_target=False) == {}
