"""What every hook of a library must do. A hook inherits the class and says how to use its library.

The class variables: ``command``, an unedited script and its arguments, which trains three epochs of
a made-up task over the library on two ranks, with 16 samples of each in a step and a learning rate
of 0.25, and prints its metric after every epoch (``epoch 3 0.625``); ``metrics``, by library, the
name under which zeusrun gets this metric, and from which source; ``controls``, whether the hook
ends the training.

Each of the few tests asserts much: loading these libraries takes seconds.
"""

from __future__ import annotations

import re

import pytest

from tests.worker.rank import Rank
from zeusrun.sidecar.events import Hooked, Observed, Reported


class HookContract:
    controls = False

    @pytest.fixture
    def run(self, tmp_path):
        """Run the script on two ranks; return the events and what each rank printed."""

        def start(**environment):
            ranks = Rank(tmp_path / "run")
            logs = ranks.run_all(*self.command, world_size=2, cwd=tmp_path, **environment)
            return ranks.events, logs

        return start

    @staticmethod
    def reports(events, source, metric):
        found = [e for e in events if isinstance(e, Reported) and e.source == source]
        return [(e.epoch, e.metrics[metric]) for e in found if metric in e.metrics]

    def check(self, events, logs, epochs, samples=16):
        """Everything that the script printed was reported, and nothing else."""
        lines = re.findall(r"^epoch (\d+) (\S+)$", logs[0], re.MULTILINE)
        printed = [(int(epoch), float(value)) for epoch, value in lines]
        assert [epoch for epoch, _ in printed] == epochs
        for library, (source, metric) in self.metrics.items():
            assert self.reports(events, source, metric) == printed
            (hooked,) = [e for e in events if isinstance(e, Hooked) and e.library == library]
            assert hooked.problem is None
            assert re.match(r"\d+\.\d+", hooked.version)
        for event in events:
            if isinstance(event, Reported):
                of = {value for name, value in event.metrics.items() if "epoch_of_" in name}
                assert of <= {event.epoch}
        observed = [event for event in events if isinstance(event, Observed)]
        assert {event.rank for event in observed} == {0, 1}
        assert {event.samples for event in observed} == {samples}
        assert {event.learning_rates for event in observed} == {(0.25,)}

    def test_an_unedited_script_is_seen(self, run):
        self.check(*run(ZEUSRUN_TARGET="2"), epochs=[1, 2, 3])

    def test_it_ends_the_training_at_the_target_on_both_ranks_in_one_step(self, run):
        if not self.controls:
            pytest.skip("these hooks only report; a signal ends the training")
        ((_, metric),) = self.metrics.values()
        events, logs = run(ZEUSRUN_METRIC=metric, ZEUSRUN_TARGET="0")
        self.check(events, logs, epochs=[1])
        steps = {re.findall(r"^steps (\d+)$", log, re.MULTILINE)[0] for log in logs}
        assert len(steps) == 1
