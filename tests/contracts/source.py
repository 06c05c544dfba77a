"""What every metric source must do. A source inherits the class and says how to make and fill one.

The fixtures: ``source``, of a run in which nothing was reported yet; ``report``, a function that
lets the training report an epoch with its metrics; ``begin_report``, one that lets it write the
first part of such a report and returns a function that writes the rest; ``spoil``, one that puts
something into the source that is no report.

The class variable ``misses_its_file``: whether a source says at the end that it found no file.
"""

from __future__ import annotations

import pytest

from zeusrun.sidecar.events import Reported


class MetricSourceContract:
    misses_its_file = False

    @staticmethod
    def read(source, *, final=False):
        events = [event for event in source.read(final=final) if isinstance(event, Reported)]
        return [(event.epoch, dict(event.metrics)) for event in events]

    @pytest.mark.parametrize("final", [False, True])
    def test_nothing_reported_is_no_event_and_no_warning(self, source, final):
        assert self.read(source, final=final) == []
        assert len(source.warnings) == (final and self.misses_its_file)

    def test_each_report_is_returned_once_and_in_order(self, source, report):
        report(1, accuracy=0.25)
        assert self.read(source) == [(1, {"accuracy": 0.25})]
        assert self.read(source) == []
        report(2, accuracy=0.5, loss=1.5)
        report(3, accuracy=0.75)
        assert self.read(source) == [(2, {"accuracy": 0.5, "loss": 1.5}), (3, {"accuracy": 0.75})]
        assert self.read(source, final=True) == []

    @pytest.mark.parametrize("value", [0.1 + 0.2, 1e-300, -2.5e300])
    def test_a_value_arrives_exactly(self, source, report, value):
        report(1, accuracy=value)
        assert self.read(source) == [(1, {"accuracy": value})]

    def test_half_a_report_waits_for_its_other_half(self, source, report, begin_report):
        report(1, accuracy=0.25)
        complete = begin_report(2, accuracy=0.5)
        assert self.read(source) == [(1, {"accuracy": 0.25})]
        complete()
        assert self.read(source, final=True) == [(2, {"accuracy": 0.5})]

    def test_what_is_no_report_is_one_warning_and_hides_nothing(self, source, report, spoil):
        report(1, accuracy=0.25)
        spoil()
        report(2, accuracy=0.5)
        assert [epoch for epoch, _ in self.read(source)] == [1, 2]
        assert len(source.warnings) == 1
        self.read(source, final=True)
        assert len(source.warnings) == 1
