"""The values that travel through one submit."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given

from tests.contracts.history import choices, outcomes
from tests.factories import build_trial as trial
from zeusrun.trial import CurvePoint, EnergySource, Interruption, Outcome, Trial, TrialStatus
from zeusrun.trial.values import NoisePoint

# DESIGN, "Stable JSON".
PROMISED = [
    "trial",
    "job",
    "recurrence",
    "attempt",
    "status",
    "reason",
    "global_batch_size",
    "power_limit_w",
    "learning_rate",
    "world_size",
    "gpu_model",
    "gpu_count",
    "started_at",
    "startup_s",
    "time_s",
    "energy_j",
    "energy_source",
    "max_power_w",
    "cost_j",
    "epochs",
    "metric",
    "best_metric",
    "run_dir",
]
NOW = "2025-06-01T13:00:00.000+00:00"
DONE = Outcome(TrialStatus.REACHED, "accuracy 0.6 in epoch 2", NOW)


@given(choices, outcomes)
def test_a_trial_survives_json(choice, outcome):
    for before in (trial(**choice), trial(**choice).finish(outcome)):
        wire = json.dumps(before.to_json(), allow_nan=False)
        assert Trial.from_json(json.loads(wire)) == before


def test_the_promised_fields_come_first_and_in_their_order():
    assert list(trial().to_json())[: len(PROMISED)] == PROMISED


def test_unknown_is_null():
    record = trial().to_json()
    assert [record[name] for name in ("startup_s", "energy_j", "cost_j", "epochs")] == [None] * 4


def test_curve_points_are_lists():
    outcome = dataclasses.replace(DONE, curve=(CurvePoint(1, 2.0, None, 0.1),))
    assert trial().finish(outcome).to_json()["curve"] == [[1, 2.0, None, 0.1]]


def test_interruptions_are_lists_like_points_and_absent_from_older_records():
    outcome = dataclasses.replace(DONE, interruptions=(Interruption(2.5, 4),))
    record = trial().finish(outcome).to_json()
    assert record.pop("interruptions") == [[2.5, 4]]
    assert Trial.from_json(record).interruptions == ()


def test_noise_scales_are_lists_and_absent_from_older_records():
    curve = (NoisePoint(640, 1.0, 30.0, 40.0, 60.0), NoisePoint(1280, None, 30.0, None, None))
    done = trial().finish(dataclasses.replace(DONE, noise_curve=curve))
    record = done.to_json()
    assert record["noise_curve"] == [[640, 1.0, 30.0, 40.0, 60.0], [1280, None, 30.0, None, None]]
    assert Trial.from_json(record) == done
    del record["noise_curve"]
    assert Trial.from_json(record).noise_curve == ()


def test_fields_of_a_newer_or_an_older_version_are_ignored():
    others = {"gradient_noise_scale": 7, "noise_scale": 9.5, "preconditioned_noise_scale": None}
    assert Trial.from_json({**trial().to_json(), **others}) == trial()


def test_fields_that_came_later_have_a_default():
    record = trial(default_batch_size=None).to_json()
    for name in ("default_batch_size", "finished_at", "steps", "curve", "warnings"):
        del record[name]
    assert Trial.from_json(record) == trial(default_batch_size=None)


def test_a_whole_number_will_do_where_a_fraction_is_meant():
    assert Trial.from_json({**trial().to_json(), "time_s": 4}).time_s == 4.0


@pytest.mark.parametrize(
    "changes",
    [
        {"trial": None},
        {"recurrence": "1"},
        {"recurrence": True},
        {"recurrence": 1.5},
        {"time_s": "4"},
        {"time_s": False},
        {"status": "reached"},
        {"status": None},
        {"status": []},
        {"energy_source": "guessed"},
        {"curve": "x"},
        {"curve": [1]},
        {"curve": [[1]]},
        {"curve": [[1, 2.0, None, 0.1, 5]]},
        {"warnings": "x"},
        {"noise_curve": [[640, 1.0, 30.0]]},
        {"noise_curve": [[640, 1.0, None, 40.0, 60.0]]},
        {"interruptions": [[1.0]]},
        {"interruptions": [["1", 2]]},
        {"fingerprint": "x"},
        {"fingerprint": {"script": 1}},
    ],
    ids=str,
)
def test_a_field_of_the_wrong_type_is_a_value_error(changes):
    with pytest.raises(ValueError):  # noqa: PT011 - of any wording
        Trial.from_json({**trial().to_json(), **changes})


@pytest.mark.parametrize(
    "changes",
    [
        *({name: -1} for name in ("epochs", "whole_steps", "samples", "preemptions", "max_epochs")),
        *({name: -0.5} for name in ("time_s", "startup_s", "whole_energy_j", "energy_j", "cost_j")),
        *({"progress": value} for value in (-0.5, math.nan, math.inf)),
        {"max_power_w": -1.0},
        {"curve": [[-1, 2.0, None, 0.5]]},
        {"curve": [[1, 2.0, -3.0, 0.5]]},
        {"interruptions": [[-1.0, 2]]},
        {"power_profile": [[200.0, -1.0, 100.0]]},
    ],
    ids=str,
)
def test_an_amount_below_0_or_without_end_is_a_value_error_that_names_it(changes):
    (name,) = changes
    with pytest.raises(ValueError, match=rf"{name} is .*|a point of the curve"):
        Trial.from_json({**trial().to_json(), **changes})


def test_what_may_be_below_0_is_read():
    changes = {"profiling_cost_j": -1.0, "price": -0.1, "best_metric": -2.0, "target": -1.0}
    record = {**trial().to_json(), **changes, "curve": [[1, 2.0, None, -0.5]]}
    assert Trial.from_json(record).to_json() == record


@pytest.mark.parametrize("name", ["trial", "global_batch_size", "stage", "target"])
def test_a_missing_field_is_a_value_error_that_names_it(name):
    record = trial().to_json()
    del record[name]
    with pytest.raises(ValueError, match=name):
        Trial.from_json(record)


def test_finishing_takes_every_field_of_the_outcome_and_no_other():
    outcome = dataclasses.replace(DONE, time_s=4.0, energy_source=EnergySource.COUNTER)
    finished = trial().finish(outcome)
    names = {field.name for field in dataclasses.fields(Outcome)}
    for field in dataclasses.fields(Trial):
        source = outcome if field.name in names else trial()
        assert getattr(finished, field.name) == getattr(source, field.name)


def test_every_field_of_an_outcome_says_how_it_is_joined_or_is_that_of_the_last_part():
    fields = dataclasses.fields(Outcome)
    plain = {field.name for field in fields if "joiner" not in field.metadata}
    assert plain == {"status", "reason", "finished_at", "cause", "reason_code"}


@pytest.mark.parametrize("status", [status for status in TrialStatus if status.finished])
def test_a_finished_trial_never_changes_unless_it_was_lost(status):
    finished = trial().finish(dataclasses.replace(DONE, status=status))
    other = dataclasses.replace(DONE, cost_j=1.0)
    if status is TrialStatus.LOST:
        assert finished.finish(other) == trial().finish(other)
        return
    with pytest.raises(ValueError, match=f"job-1-1 is {status.value} already"):
        finished.finish(other)


def test_no_trial_ends_before_it_began_though_the_clock_was_set_back():
    early = dataclasses.replace(DONE, finished_at="2000-01-01T00:00:00.000+00:00")
    ended = trial().finish(early)
    assert ended.finished_at == trial().started_at
    assert ended.finish(early) == ended


def test_a_trial_cannot_be_finished_as_dispatched():
    with pytest.raises(ValueError, match="cannot be DISPATCHED"):
        trial().finish(dataclasses.replace(DONE, status=TrialStatus.DISPATCHED))


def test_values_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        trial().status = TrialStatus.REACHED
    with pytest.raises(dataclasses.FrozenInstanceError):
        DONE.cost_j = 0.0


def test_dispatched_is_the_one_status_that_is_not_finished():
    assert [status for status in TrialStatus if not status.finished] == [TrialStatus.DISPATCHED]


def test_an_estimate_is_the_one_source_that_is_not_measured():
    assert [s for s in EnergySource if not s.measured] == [EnergySource.ESTIMATED]
