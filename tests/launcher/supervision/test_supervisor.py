"""In which order a training is started, looked after and ended."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

from tests.launcher.values import LAUNCHED
from zeusrun.launcher.supervision.supervisor import start_ranks


def test_the_limits_are_restored_before_the_last_processes_are_ended():
    done = []

    @contextlib.contextmanager
    def run_ranks(_command, _grace_period_s, _others):
        done.append("started")
        yield
        done.append("ended")

    run = SimpleNamespace(
        begun=SimpleNamespace(
            trial=SimpleNamespace(world_size=1),
            paths=None,
            choice=SimpleNamespace(largest_that_fits=None),
        ),
        submission=SimpleNamespace(
            commands=lambda *_: (None,),
            spec=SimpleNamespace(launch=SimpleNamespace(grace_period_s=2.0), elastic=None),
        ),
        limits=SimpleNamespace(
            begin=lambda: done.append("held"), restore=lambda: done.append("restored")
        ),
        meter=contextlib.nullcontext(),
        ranks=SimpleNamespace(run=run_ranks),
        progress=LAUNCHED,
    )
    with start_ranks(run):
        done.append("trained")
    assert done == ["held", "started", "trained", "restored", "ended"]
