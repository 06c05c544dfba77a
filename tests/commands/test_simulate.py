"""``zeusrun simulate`` as a user runs it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.console import Console

from tests.factories import DONE
from zeusrun.jobfile.spec import JobSpec, load_spec
from zeusrun.simulate.replay import ATTEMPTS
from zeusrun.trial import CurvePoint
from zeusrun.view.simulate import (
    _short,
    _short_claim,
    progress,
    saved_share,
    spread_text,
)
from zeusrun.view.units import MINUS, duration, energy


def test_progress_is_silent_where_nobody_looks(capsys):
    with progress(Console(stderr=True)) as on_progress:
        on_progress(0.5)
    assert capsys.readouterr() == ("", "")


LEARNED = [
    (size, replace(DONE, time_s=epochs * 2.0, energy_j=epochs * 20.0, epochs=epochs, curve=curve))
    for size, epochs in [(32, 3), (16, 4), (32, 3), (16, 5), (32, 4), (32, 3)]
    for curve in [
        tuple(CurvePoint(n, n * 2.0, n * 20.0, 0.6 * n / epochs) for n in range(1, epochs + 1))
    ]
]


@pytest.fixture
def learned(cli, record, zeusrun):
    """Return a job with six runs."""
    for number, (size, outcome) in enumerate(LEARNED, 1):
        record(number, outcome, world_size=1, max_epochs=5, global_batch_size=size)
    return zeusrun.job()


OWN_FEW = ("--seeds", 2, "--recurrences", 5)


def test_a_job_is_forecast_from_its_own_history(cli, learned):
    code, out, err = cli("simulate", learned, *OWN_FEW, "--set", "objective.eta_knob=1")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert out.startswith("job: the next 5 recurrences, as it is and with objective.eta_knob=1\n\n")
    assert "The forecast uses 6 runs that reached the target." in out
    left_out = "! left out, because they crash or have no runs on these devices and settings: 64"
    assert left_out in " ".join(out.split())
    assert "Costs of different eta_knob cannot be compared" in " ".join(out.split())
    assert "! only 6 runs" in out
    alone = cli("simulate", learned, *OWN_FEW)[1]
    assert "changed" not in alone
    assert alone.startswith("job: the next 5 recurrences\n\n")


def test_a_forecast_says_which_loader_workers_it_leaves_out(cli, learned, record):
    text = "Left out: the speed of runs with another setting of loader workers"
    assert "workers" not in cli("simulate", learned, *OWN_FEW)[1]
    record(7, LEARNED[0][1], world_size=1, max_epochs=5, speed_variant="tune")
    assert text in " ".join(cli("simulate", learned, *OWN_FEW)[1].split())


def test_a_forecast_by_name_says_whose_settings_it_has(cli, learned, zeusrun):
    last = zeusrun.run_dir("job-6-1")
    (last / "job.yaml").write_text(load_spec(learned).to_yaml())
    changes = ("--set", "objective.eta_knob=1", "--set", "attempts=3")
    code, out, err = cli("simulate", "job", *OWN_FEW, *changes)
    assert (code, err) == (0, "")
    assert "Settings: those of job-6-1." in out
    assert "with objective.eta_knob=1, attempts=3" in " ".join(out.split())
    assert "Settings" not in cli("simulate", learned, *OWN_FEW)[1]


def test_a_forecast_with_control_runs_shows_what_they_cost_in_a_row_of_its_own(cli, learned):
    changes = ("--set", "policy.control=2")
    code, out, err = cli("simulate", learned, *OWN_FEW, *changes)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert "\ncost of control runs " in out
    assert "Control runs: what those of the default cost more" in " ".join(out.split())
    assert "control runs" not in cli("simulate", learned, *OWN_FEW)[1]
    found = json.loads(cli("simulate", learned, *OWN_FEW, *changes, "--json")[1])
    assert found["today"]["control_j"] == {"p5": 0.0, "median": 0.0, "p95": 0.0}
    assert found["changed"]["control_j"]["median"] != 0.0


def test_a_short_epoch_is_shown_as_it_is():
    assert [_short(each) for each in (0.0, 0.0021, 0.2)] == ["0.0 s", "2.1 ms", "0.2 s"]


@pytest.mark.parametrize(
    ("values", "text", "shown"),
    [
        ([-1.07, 12.0, 58.9], energy, "12.0 J\n-1.07 to\n58.9 J"),
        ([-1.07, -1.0, 5e5], energy, "-1.00 J\n-1.07 J to\n500 kJ"),
        ([3.0, 3.0, 3.0], energy, "3.00 J"),
        ([60, 61, 62], duration, "1 m 01 s\n1 m 00 s to\n1 m 02 s"),
    ],
)
def test_a_range_names_its_unit_once_and_breaks_only_after_to(values, text, shown):
    assert spread_text(values, text).plain.replace(MINUS, "-") == shown


def test_a_forecast_as_json_has_both_settings_and_their_spread(cli, learned):
    changes = ("--set", "batch_size.candidates=[16,32,64,128]")
    found = json.loads(cli("simulate", learned, *OWN_FEW, *changes, "--json")[1])
    assert (found["job"], found["set"]) == ("job", ["batch_size.candidates=[16,32,64,128]"])
    sizes = [each["global_batch_size"] for each in found["changed"]["candidates"]]
    assert (sizes, found["changed"]["left_out"]) == ([16, 32], [64, 128])
    cost_j = found["today"]["cost_j"]
    assert 0 < cost_j["p5"] <= cost_j["median"] <= cost_j["p95"]
    assert sum(found["changed"]["batch_sizes"].values()) == 1
    saved = found["saved"]
    assert list(saved) == ["cost_j", "energy_j", "time_s"]
    assert all(each["share_low"] <= 0 <= each["share_high"] for each in saved.values())
    alone = json.loads(cli("simulate", learned, *OWN_FEW, "--json")[1])
    assert (alone["changed"], alone["saved"]) == (None, {})


@pytest.mark.parametrize(
    ("after", "cell", "style"),
    [
        ([80 + n / 4 for n in range(20)], "18 %\n15 to 20 %", "green"),
        ([120 + n / 4 for n in range(20)], f"{MINUS}22 %\n{MINUS}25 to {MINUS}20 %", "yellow"),
        ([80] * 12 + [100] * 7 + [103], f"not shown\n{MINUS}3 to 20 %", None),
        ([80] * 18, "not shown\n0 to 20 %", None),
        ([100.1] * 20, "none", None),
    ],
)  # fmt: skip
def test_a_difference_is_claimed_and_coloured_only_if_it_is_shown(after, cell, style):
    saved = saved_share([100.0] * len(after), after)
    text = _short_claim(saved)
    assert text.plain == cell
    assert [span.style for span in text.spans if span.style != "dim"] == ([style] if style else [])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("job.yaml", "--set", "env={A: b}"), "past runs do not show what another env would do"),
        (
            ("job.yaml", "--set", "objective.target=0.9"),
            "job has 0 runs that reached accuracy 0.9 under these settings",
        ),
        (
            ("job.yaml", "--set", "batch_size.candidates=[33,64]"),
            "zeusrun: --set batch_size.candidates=[33,64]: 'batch_size.default' must be one of",
        ),
        (("jbo",), "no run and no job called 'jbo'; known jobs: job; did you mean 'job'?"),
        (("job.yaml", "--set", "objective.targt=1"), "did you mean"),
        (("nosuch", "--set", "objective.eta_knob=1"), "nosuch"),
        (("job.yaml", "--set", "policy.name=zues"), "must be 'auto', 'zeus', 'fixed' or 'grid'"),
        (("job.yaml", "--seeds", "0"), "--seeds"),
    ],
)
def test_a_forecast_that_cannot_be_made_is_refused_in_a_sentence(cli, learned, arguments, words):
    code, out, err = cli("simulate", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


def test_a_recurrence_may_make_as_many_attempts_as_by_a_job_file():
    assert JobSpec.model_fields["attempts"].default == ATTEMPTS
