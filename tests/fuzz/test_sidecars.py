"""Bad sidecars and step clocks: events and a progress from them, warnings for the rest."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from hypothesis import strategies as st

from tests.factories import build_trial as trial
from tests.fuzz.mutations import mutated, pieces, run_inputs
from tests.launcher.values import GOAL, LAUNCHED, KnownMeter, ten_watts
from zeusrun.history.rules import encode_trial
from zeusrun.launcher.processes.torchrun import ProcessExit
from zeusrun.launcher.rundir.layout import create_run
from zeusrun.launcher.supervision.outcome import build_outcome
from zeusrun.maintenance.recover import _lost
from zeusrun.metrics.advance import advance
from zeusrun.metrics.base import MAX_WARNINGS, SidecarReader
from zeusrun.metrics.progress import take_step_clock
from zeusrun.plain_text import storable_text
from zeusrun.sidecar.step_clock import StepCount, read_step_clock

NOW = "2025-06-01T13:00:00.000+00:00"


@pytest.fixture
def paths(tmp_path):
    return create_run(tmp_path, "job", "job-1-1")


def read(path, content, cut):
    """Read a sidecar that comes in two parts."""
    reader = SidecarReader(path)
    path.write_bytes(content[: cut % (len(content) + 1)])
    events = reader.read()
    path.write_bytes(content)
    events += reader.read(final=True)
    assert len(reader.warnings) <= MAX_WARNINGS + 1
    assert all(len(warning) < 1000 for warning in reader.warnings)
    return events


def outcome_of(events, count):
    """Return the outcome of a run as its launcher would have it."""
    progress = take_step_clock(LAUNCHED, count)
    for event in events:
        timely = replace(event, t=min(max(event.t, LAUNCHED.launched_t), 1000.0))
        progress = advance(progress, timely, GOAL, ten_watts)
    outcome = build_outcome(
        trial(),
        progress=progress,
        exit_=ProcessExit(0, 1000.0, ()),
        stop=None,
        failure=None,
        meter=KnownMeter(ten_watts, None, 10.0),
        finished_at=NOW,
    )
    warnings = tuple(map(storable_text, outcome.warnings))
    return replace(outcome, reason=storable_text(outcome.reason), warnings=warnings)


def test_the_corpus_holds_events_and_other_lines(tmp_path):
    events = [read(tmp_path / "metrics.jsonl", piece, 0) for piece in pieces("sidecars")]
    assert [len(found) for found in events] == [1, 5, 5]


def test_any_sidecar_ends_in_an_outcome_that_can_be_stored(tmp_path):
    def sidecars(content, cut):
        events = read(tmp_path / "metrics.jsonl", content, cut)
        encode_trial(trial().finish(outcome_of(events, None)))

    run_inputs(sidecars, mutated("sidecars"), st.integers(0, 1000))


def test_any_sidecar_and_clock_of_a_lost_trial_can_be_recorded(paths):
    def lost_trials(content, clock):
        paths.sidecar.write_bytes(content)
        paths.rank_clock(0).write_bytes(clock)
        encode_trial(trial().finish(_lost(trial(), paths, NOW, None)))

    run_inputs(lost_trials, mutated("sidecars"), mutated("step_clocks"))


def test_any_step_clock_is_a_count_or_nothing(tmp_path):
    def step_clocks(content):
        path = tmp_path / "rank0"
        path.write_bytes(content)
        count = read_step_clock(path)
        assert count is None or (isinstance(count, StepCount) and count.steps > 0)
        encode_trial(trial().finish(outcome_of([], count)))

    run_inputs(step_clocks, mutated("step_clocks"))
    shutil.rmtree(tmp_path)
