"""What every history must do. A back end inherits the class and says how to open one."""

from __future__ import annotations

import functools
import threading
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import factories
from tests.factories import PREEMPTED, REACHED
from zeusrun.errors import HistoryError
from zeusrun.trial import CurvePoint, EnergySource, Outcome, Trial, TrialStatus

# Paths that are not UTF-8 come as lone surrogates (PEP 383).
texts = st.text(st.one_of(st.characters(), st.just("\udcff")), max_size=20)
numbers = st.floats(allow_nan=False, allow_infinity=False)
unsure = st.none() | numbers
counts = st.integers(0, 2**40)

outcomes = st.builds(
    Outcome,
    status=st.sampled_from([status for status in TrialStatus if status.finished]),
    reason=texts,
    finished_at=texts,
    startup_s=unsure,
    time_s=unsure,
    energy_j=unsure,
    energy_source=st.none() | st.sampled_from(EnergySource),
    max_power_w=unsure,
    cost_j=unsure,
    epochs=st.none() | counts,
    steps=st.none() | counts,
    best_metric=unsure,
    curve=st.lists(st.builds(CurvePoint, counts, numbers, unsure, unsure), max_size=5).map(tuple),
    warnings=st.lists(texts, max_size=2).map(tuple),
)
choices = st.fixed_dictionaries(
    {
        "global_batch_size": counts,
        "power_limit_w": unsure,
        "learning_rate": unsure,
        "gpu_model": st.none() | texts,
        "run_dir": texts,
        "why": texts,
        "target": numbers,
        "eta_knob": numbers,
    }
)

build_trial = functools.partial(factories.build_trial, job="digits")


def next_trial(trials: list[Trial]) -> Trial:
    """Dispatch the next recurrence of the job ``digits``."""
    return build_trial(len(trials) + 1)


class HistoryContract:
    @pytest.fixture
    def history(self, tmp_path):
        raise NotImplementedError

    def test_an_unknown_job_has_no_trials(self, history):
        assert history.trials("digits") == []
        assert history.jobs() == []

    def test_what_begins_is_read_back_dispatched(self, history):
        trial = history.begin("digits", next_trial)
        assert trial == build_trial(1)
        assert history.trials("digits") == [trial]
        assert history.find("digits-1-1") == trial

    def test_what_finishes_is_read_back_with_its_outcome(self, history):
        begun = history.begin("digits", next_trial)
        finished = history.finish(begun.trial, REACHED)
        assert finished == begun.finish(REACHED)
        assert history.trials("digits") == [finished]
        assert history.find(begun.trial) == finished

    def test_trials_stay_in_the_order_they_began(self, history):
        for _ in range(12):
            history.begin("digits", next_trial)
        history.finish("digits-3-1", REACHED)
        assert [trial.recurrence for trial in history.trials("digits")] == list(range(1, 13))

    def test_dispatch_gets_the_trials_so_far(self, history):
        history.begin("digits", next_trial)
        finished = history.finish("digits-1-1", REACHED)
        seen = []
        history.begin("digits", lambda trials: seen.extend(trials) or build_trial(2))
        assert seen == [finished]

    @pytest.mark.parametrize("last", [None, 0, 1, 3, 4, 9])
    def test_the_newest_trials_are_given_oldest_first(self, history, last):
        for _ in range(4):
            history.begin("digits", next_trial)
        newest = list(range(1, 5))[0 if last is None else max(0, 4 - last) :]
        assert [trial.recurrence for trial in history.trials("digits", last)] == newest
        seen = []
        history.begin("digits", lambda trials: seen.extend(trials) or build_trial(5), last=last)
        assert [trial.recurrence for trial in seen] == newest
        assert history.trials("other", last) == []

    def test_fewer_than_no_trials_are_refused(self, history):
        with pytest.raises(ValueError, match="-1 trials"):
            history.trials("digits", -1)
        with pytest.raises(ValueError, match="-1 trials"):
            history.begin("digits", next_trial, last=-1)
        assert history.jobs() == []

    def test_a_preempted_trial_goes_on_in_its_place(self, history):
        history.begin("digits", next_trial)
        preempted = history.finish("digits-1-1", PREEMPTED)
        second = history.begin("digits", next_trial)
        resumed = preempted.resume("2025-06-02T12:00:00Z")
        assert history.begin("digits", lambda _: resumed) == resumed
        assert history.trials("digits") == [resumed, second]
        assert history.find("digits-1-1") == resumed
        finished = history.finish("digits-1-1", REACHED)
        assert finished == resumed.finish(REACHED)
        assert finished.preemptions == 1
        assert history.trials("digits") == [finished, second]

    def test_a_trial_can_go_on_as_often_as_it_is_preempted(self, history):
        history.begin("digits", next_trial)
        for count in (1, 2, 3):
            preempted = history.finish("digits-1-1", PREEMPTED)
            history.begin("digits", lambda _, trial=preempted: trial.resume("2025-06-02T12:00:00Z"))
            assert [trial.preemptions for trial in history.trials("digits")] == [count]

    def test_a_preempted_trial_that_dispatch_does_not_see_can_go_on(self, history):
        history.begin("digits", next_trial)
        preempted = history.finish("digits-1-1", PREEMPTED)
        history.begin("digits", next_trial)
        resumed = preempted.resume("2025-06-02T12:00:00Z")
        history.begin("digits", lambda _: resumed, last=1)
        assert history.find("digits-1-1") == resumed

    @pytest.mark.parametrize(
        "other",
        [
            {"global_batch_size": 128},
            {"learning_rate": 0.5},
            {"world_size": 4},
            {"run_dir": "runs/elsewhere"},
            {"preemptions": 0},
            {"preemptions": 2},
            {"time_s": None},
            {"energy_j": 0.0},
            {"epochs": 0},
            {"curve": ()},
            {"status": TrialStatus.PREEMPTED},
        ],
        ids=lambda other: next(iter(other)),
    )
    def test_what_does_not_go_on_where_it_was_preempted_is_refused(self, history, other):
        history.begin("digits", next_trial)
        preempted = history.finish("digits-1-1", PREEMPTED)
        wrong = replace(preempted.resume("2025-06-02T12:00:00Z"), **other)
        with pytest.raises(ValueError, match=r"digits-1-1"):
            history.begin("digits", lambda _: wrong)
        assert history.trials("digits") == [preempted]

    @pytest.mark.parametrize("status", [s for s in TrialStatus if s.finished])
    def test_of_the_finished_trials_only_a_preempted_one_may_be_cancelled(self, history, status):
        history.begin("digits", lambda _: build_trial(1))
        known = history.finish("digits-1-1", replace(REACHED, status=status))
        ended = known.ended_as(TrialStatus.CANCELLED, "nobody wants it", "2025-06-02T12:00:00Z")
        if status is TrialStatus.PREEMPTED:
            cancelled = history.finish("digits-1-1", ended)
            assert (cancelled.status, cancelled.reason) == (
                TrialStatus.CANCELLED,
                "nobody wants it",
            )
            assert cancelled == replace(
                known,
                status=cancelled.status,
                reason=cancelled.reason,
                finished_at=cancelled.finished_at,
            )
        else:
            with pytest.raises(ValueError, match="never changes"):
                history.finish("digits-1-1", ended)
            assert history.trials("digits") == [known]

    @pytest.mark.parametrize("status", [s for s in TrialStatus if s is not TrialStatus.PREEMPTED])
    def test_only_a_preempted_trial_goes_on(self, history, status):
        known = history.begin("digits", next_trial)
        if status.finished:
            known = history.finish("digits-1-1", replace(REACHED, status=status))
        again = replace(known, status=TrialStatus.DISPATCHED, preemptions=1)
        with pytest.raises(ValueError, match="already"):
            history.begin("digits", lambda _: again)
        assert history.trials("digits") == [known]

    def test_dispatch_can_read_the_history(self, history):
        history.begin("digits", next_trial)
        history.begin("digits", lambda _: next_trial(history.trials("digits")))
        assert len(history.trials("digits")) == 2

    def test_jobs_are_kept_apart_and_listed_by_name(self, history):
        other = history.begin("a.b_c-1", lambda _: build_trial(job="a.b_c-1"))
        history.begin("digits", next_trial)
        assert history.jobs() == ["a.b_c-1", "digits"]
        assert history.trials("a.b_c-1") == [other]
        assert history.find("a.b_c-1-1-1") == other

    @pytest.mark.parametrize("trial", ["digits-2-1", "other-1-1", "digits", "", "../digits-1-1"])
    def test_an_id_that_is_not_there_is_not_found(self, history, trial):
        history.begin("digits", next_trial)
        assert history.find(trial) is None
        with pytest.raises(HistoryError, match="no trial"):
            history.finish(trial, REACHED)
        assert history.jobs() == ["digits"]

    def test_a_finished_trial_never_changes(self, history):
        history.begin("digits", next_trial)
        finished = history.finish("digits-1-1", REACHED)
        with pytest.raises(ValueError, match="never changes"):
            history.finish("digits-1-1", REACHED)
        assert history.trials("digits") == [finished]

    @pytest.mark.parametrize("number", [1, 12])
    def test_a_trial_is_forgotten_and_learned_from_again(self, history, number):
        for count in range(1, 13):
            history.begin("digits", next_trial)
            history.finish(f"digits-{count}-1", REACHED)
        before = history.trials("digits")
        marked = history.forget(f"digits-{number}-1", forgotten=True)
        assert marked == replace(before[number - 1], forgotten=True)
        after = [*before[: number - 1], marked, *before[number:]]
        assert history.trials("digits") == after
        history.begin("digits", next_trial)  # what is written next keeps the mark
        assert history.find(marked.trial) == marked
        assert history.trials("digits")[:-1] == after
        assert history.forget(marked.trial, forgotten=False) == before[number - 1]
        assert history.trials("digits")[:-1] == before

    def test_only_what_has_ended_is_forgotten(self, history):
        begun = history.begin("digits", next_trial)
        with pytest.raises(ValueError, match="DISPATCHED and cannot be forgotten"):
            history.forget(begun.trial, forgotten=True)
        with pytest.raises(HistoryError, match="no trial"):
            history.forget("digits-2-1", forgotten=True)
        assert history.trials("digits") == [begun]

    def test_an_outcome_must_be_an_end(self, history):
        begun = history.begin("digits", next_trial)
        unfinished = Outcome(TrialStatus.DISPATCHED, "not yet", "2025-06-01T12:00:09Z")
        with pytest.raises(ValueError, match="cannot be DISPATCHED"):
            history.finish("digits-1-1", unfinished)
        assert history.trials("digits") == [begun]

    @pytest.mark.parametrize(
        "wrong",
        [
            build_trial(1),
            build_trial(2, job="other"),
            build_trial(2).finish(REACHED),
            build_trial(2, trial="digits-3-1"),
            build_trial(0),
            build_trial(2, target=float("nan")),
            build_trial(2, learning_rate=float("inf")),
            build_trial(2, global_batch_size=64.5),
        ],
        ids=[
            "taken id",
            "other job",
            "finished",
            "id of another",
            "number below 1",
            "NaN",
            "infinite",
            "wrong type",
        ],
    )
    def test_a_trial_that_cannot_be_next_is_refused_and_not_stored(self, history, wrong):
        first = history.begin("digits", next_trial)
        with pytest.raises(ValueError, match=r"trial|digits"):
            history.begin("digits", lambda _: wrong)
        assert history.trials("digits") == [first]
        assert history.jobs() == ["digits"]

    def test_an_outcome_that_would_not_read_back_is_refused_and_not_stored(self, history):
        begun = history.begin("digits", next_trial)
        endless = Outcome(TrialStatus.MISSED, "", "", curve=(CurvePoint(1, float("nan"), None, 1),))
        with pytest.raises(ValueError, match="cannot be stored"):
            history.finish("digits-1-1", endless)
        assert history.trials("digits") == [begun]

    @pytest.mark.parametrize("error", [KeyError, OSError, KeyboardInterrupt])
    def test_what_dispatch_raises_passes_and_nothing_is_stored(self, history, error):
        def fail(trials):
            raise error

        with pytest.raises(error):
            history.begin("digits", fail)
        assert history.trials("digits") == []
        assert history.jobs() == []
        assert history.begin("digits", next_trial).recurrence == 1

    @pytest.mark.parametrize(
        "job", ["", ".", "..", ".hidden", "../up", "a/b", "/etc", "a\0b", "a\n", "-rf", "a b"]
    )
    def test_a_job_name_that_is_no_file_name_is_refused(self, history, job):
        with pytest.raises(ValueError, match="name of a job"):
            history.trials(job)
        with pytest.raises(ValueError, match="name of a job"):
            history.begin(job, lambda _: build_trial(job=job))

    def test_the_lists_given_out_are_copies(self, history):
        history.begin("digits", next_trial)
        history.trials("digits").clear()
        history.begin("digits", lambda trials: trials.clear() or build_trial(2))
        assert len(history.trials("digits")) == 2

    def test_threads_that_begin_at_once_choose_one_after_the_other(self, history):
        meeting = threading.Barrier(2)
        met = []

        def dispatch(trials):
            with suppress(threading.BrokenBarrierError):  # nobody else is choosing
                met.append(meeting.wait(timeout=0.2))
            return next_trial(trials)

        threads = [
            threading.Thread(target=history.begin, args=("digits", dispatch)) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert met == []
        assert [trial.recurrence for trial in history.trials("digits")] == [1, 2, 3]

    def test_any_trial_survives(self, history):
        # Inside, because an inherited property would be replayed on one back end after failing on
        # another. All examples share one history: each adds to what the others left.
        @settings(max_examples=30, deadline=None)
        @given(choice=choices, outcome=outcomes)
        def check(choice, outcome):
            earlier = history.trials("digits")
            begun = history.begin("digits", lambda t: build_trial(len(t) + 1, **choice))
            assert history.trials("digits") == [*earlier, begun]
            finished = history.finish(begun.trial, outcome)
            assert history.trials("digits") == [*earlier, finished]

        check()
