"""Noticing that a training or its data have changed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bandit.runs import run
from zeusrun.bandit.auto.drift import LEAST, describe_edited, weigh_runs, without_edited
from zeusrun.bandit.auto.evidence import find_luck
from zeusrun.bandit.problem import RUN_SD
from zeusrun.trial import TrialStatus

REACHED, MISSED, STOPPED = TrialStatus.REACHED, TrialStatus.MISSED, TrialStatus.STOPPED
STEADY = [run(64, epochs) for epochs in (10, 11, 9, 10)]


def chances(runs):
    return [each.chance for each in weigh_runs(runs)]


def of_another_script(runs, name="a"):
    return [each._replace(differs=f"script:{name}") for each in runs]


def test_a_steady_job_has_not_changed():
    assert weigh_runs([]) == []
    assert min(chances(STEADY * 5)) > 0.97


@pytest.mark.parametrize("epochs", [30, 3])
def test_runs_in_a_row_that_surprise_are_a_change_and_one_or_two_are_not(epochs):
    later = [chances([*STEADY * 2, *[run(64, epochs)] * n])[0] for n in range(6)]
    assert later == sorted(later, reverse=True)
    assert later[1] > 0.9
    assert later[2] > 0.5
    assert later[5] < LEAST
    assert chances([*STEADY * 2, *[run(64, epochs)] * 5])[-5:] == pytest.approx([1] * 5, abs=0.05)


def test_a_single_surprise_is_an_accident():
    assert min(chances([*STEADY, run(64, 30), *STEADY, run(64, 30), run(64, 10)])) > 0.9


def test_surprises_of_opposite_kinds_are_noise():
    assert min(chances([*STEADY * 2, run(64, 30), run(64, 3), run(64, 30), run(64, 3)])) > 0.9


def test_failing_where_it_always_worked_is_a_change():
    for failed in (run(64, 40, status=MISSED), run(64, 30, status=STOPPED)):
        assert chances([*STEADY * 2, *[failed] * 5])[0] < 0.1
    assert chances([run(64, 10), *[run(64, 40, status=MISSED)] * 4])[0] > 0.9  # an accident then?


def test_a_run_that_was_stopped_in_its_usual_epochs_was_only_dearer():
    """Such as on a machine that others use, too."""
    assert min(chances([*STEADY, *[run(64, 9, status=STOPPED)] * 8])) > 0.97


def test_a_change_shows_in_all_arms_together():
    before = [*STEADY, *[run(32, 12)] * 4]
    assert (
        chances([*before, *[run(64, 30)] * 3])[0]
        > chances([*before, *[run(64, 30), run(32, 36)] * 3])[0]
    )


def test_it_may_change_again():
    later = [run(64, epochs) for epochs in (30, 31, 29, 30)]
    found = chances([*STEADY * 2, *later * 2, *[run(64, 10)] * 6])
    assert max(found[:8]) < 0.1
    assert max(found[:15]) < 0.2
    assert min(found[16:]) > 0.9


def test_the_expected_change_corrects_the_epochs_of_older_runs():
    relevance = weigh_runs([*STEADY * 2, *[run(64, 20)] * 6])
    assert relevance[0].log_shift == pytest.approx(np.log(2), rel=0.2)
    assert relevance[-1].log_shift == 0


@pytest.mark.parametrize("sd", [0.05, 0.14, 0.4])
def test_noise_is_hardly_ever_taken_for_a_change(sd):
    rng = np.random.default_rng(0)
    draws = [[max(1, round(20 * rng.lognormal(0, sd))) for _ in range(50)] for _ in range(100)]
    oldest = [chances([run(64, epochs) for epochs in each])[0] for each in draws]
    assert np.mean(oldest) > 0.88
    assert sum(chance < 0.5 for chance in oldest) <= 3


def test_an_edit_is_doubted_a_little_before_the_first_run_shows_what_it_did():
    first = chances(of_another_script(STEADY))
    assert first == pytest.approx([0.9] * 4, abs=0.01)
    twice = chances([*of_another_script(STEADY), *of_another_script(STEADY, "b")])
    assert twice[0] == pytest.approx(0.81, abs=0.02)


def test_after_a_harmless_edit_the_history_counts():
    before = of_another_script(STEADY * 2)
    assert min(chances([*before, *STEADY])) > 0.95


def test_one_run_after_an_edit_decides_nothing():
    before = of_another_script(STEADY * 5)
    found = [chances([*before, *[run(64, 1000)] * n])[0] for n in range(1, 4)]
    assert found[0] > 0.4
    assert found[1] > LEAST
    assert found[2] < LEAST


def test_what_takes_half_as_long_again_after_an_edit_is_noticed_within_four_runs():
    before = of_another_script(STEADY * 5)
    assert chances([*before, *[run(64, 15)] * 4])[0] < 0.1


def test_only_runs_of_an_edit_that_has_probably_changed_the_epochs_are_left_out_and_told():
    edited, harmless = of_another_script([run(64, 30)] * 5), of_another_script(STEADY * 2, "b")
    assert without_edited([*edited, *harmless, *STEADY]) == [*harmless, *STEADY]
    first, second = describe_edited([*edited, *STEADY[:1], *harmless[:1], *STEADY * 2])
    assert first == "5 runs differed in the script: 0 % likely to need as many epochs as today"
    assert second.startswith("1 run differed in the script: ")


def test_a_reverted_edit_finds_its_runs_again():
    edited = of_another_script([run(64, 30)] * 5)
    found = weigh_runs([*STEADY, *edited, *STEADY[:1]])
    assert min(each.chance for each in found[:4]) > 0.9
    assert max(each.chance for each in found[4:9]) < LEAST


def test_two_variants_in_turn_do_not_fight():
    """Each has its own epochs, and a change of one is none of the other."""
    runs = [each for _ in range(6) for each in (run(64, 10), *of_another_script([run(64, 30)]))]
    found = weigh_runs(runs)
    assert min(each.chance for each in found[::2]) > 0.9
    assert max(each.chance for each in found[1::2]) < LEAST


@given(
    st.lists(
        st.builds(
            run,
            st.sampled_from([16, 64]),
            st.integers(1, 10**9),
            status=st.sampled_from([REACHED, MISSED, STOPPED, TrialStatus.CANCELLED]),
            differs=st.sampled_from([None, "script:a", "script:b"]),
        ),
        max_size=40,
    )
)
def test_any_history_has_sane_weights(runs):
    found = weigh_runs(runs)
    assert len(found) == len(runs)
    for each in found:
        assert 0 <= each.chance <= 1
        assert np.isfinite(each.log_shift)


def test_a_history_of_thousands_of_surprises_overflows_nothing():
    found = weigh_runs([*[run(64, 1)] * 1000, *[run(64, 10**6)] * 1000])
    assert found[0].chance < LEAST
    assert found[-1].chance == 1


def test_the_spread_starts_from_what_others_saw_and_learns():
    assert find_luck({}, {})[0].spread.sd == pytest.approx(RUN_SD)
    runs = [run(64, epochs) for epochs in (5, 37) * 50]  # their logarithms are 2 apart
    assert find_luck({64: runs}, {})[0].spread.sd == pytest.approx(1, rel=0.05)
