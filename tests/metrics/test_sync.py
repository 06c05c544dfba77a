"""What a trial keeps of ranks that change how they agree."""

from __future__ import annotations

from dataclasses import replace

from tests.factories import REACHED, build_trial
from tests.launcher.values import after, report, started
from zeusrun.metrics.base import decode_event
from zeusrun.sidecar.events import Synced, encode_event
from zeusrun.trial import Outcome, Trial, TrialStatus, join_parts
from zeusrun.trial.values import SyncChange

SLOW = Synced(105.0, 20, "bf16", "3 of 4 ranks were slow")
CALM = Synced(120.0, 90, "all-reduce", "4 of 4 ranks were calm")
KEPT = (SyncChange(0, SLOW.why, "bf16"), SyncChange(1, CALM.why, "all-reduce"))


def test_a_change_is_kept_with_the_epochs_before_it():
    progress = after(started(100.0), SLOW, report(110.0, 1, 0.5), CALM)
    assert progress.syncs == KEPT
    assert decode_event(encode_event(SLOW)) == SLOW


def test_a_problem_is_no_change():
    progress = after(started(100.0), replace(SLOW, problem="it has ended"))
    assert (progress.syncs, progress.problems) == ((), ("it has ended",))


def test_a_network_that_comes_and_goes_is_kept_in_bounds():
    progress = after(started(100.0), *[SLOW] * 150)
    assert len(progress.syncs) == 100


def test_a_trial_keeps_those_of_all_its_parts():
    first = replace(REACHED, status=TrialStatus.PREEMPTED, time_s=10.0, syncs=KEPT[:1])
    trial = replace(build_trial().finish(first), preemptions=1)
    joined = join_parts(trial, replace(REACHED, syncs=KEPT[1:]))
    assert joined.syncs == KEPT
    assert Outcome.from_json(joined.to_json()) == joined
    whole = trial.resume("2026-01-01T00:00:00Z").finish(joined)
    assert Trial.from_json(whole.to_json()).syncs == KEPT
