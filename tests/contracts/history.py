"""What every history must do. A back end inherits the class and says how to open one."""

from __future__ import annotations

import functools
import threading
import uuid
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import factories
from tests.factories import PREEMPTED, REACHED
from zeusrun.errors import HistoryError
from zeusrun.history import turns
from zeusrun.history.base import Conflict
from zeusrun.launcher.begin import HeldTurn
from zeusrun.reasons import ReasonCode
from zeusrun.trial import CurvePoint, EnergySource, Interruption, Outcome, Trial, TrialStatus
from zeusrun.trial.values import WorldChange

# Paths that are not UTF-8 come as lone surrogates (PEP 383).
texts = st.text(st.one_of(st.characters(), st.just("\udcff")), max_size=20)
numbers = st.floats(allow_nan=False, allow_infinity=False)
amounts = st.floats(0, allow_infinity=False)
unsure = st.none() | amounts
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
    best_metric=st.none() | numbers,
    curve=st.lists(
        st.builds(CurvePoint, counts, amounts, unsure, st.none() | numbers), max_size=5
    ).map(tuple),
    warnings=st.lists(texts, max_size=2).map(tuple),
    interruptions=st.lists(st.builds(Interruption, amounts, counts), max_size=2).map(tuple),
)
choices = st.fixed_dictionaries(
    {
        "global_batch_size": st.integers(1, 2**40),  # a server refuses what nobody could use
        "power_limit_w": unsure,
        "learning_rate": unsure,
        "gpu_model": st.none() | texts,
        "run_dir": texts,
        "why": texts,
        "target": numbers,
        "eta_knob": st.floats(0, 1),
        "fingerprint": st.none() | st.dictionaries(texts, texts, max_size=3),
    }
)

LATER = "2025-06-02T12:00:00Z"

build_trial = functools.partial(factories.build_trial, job="digits")


def next_trial(trials: list[Trial]) -> Trial:
    """Dispatch the next recurrence of the job ``digits``."""
    return build_trial(len(trials) + 1)


def another_next_trial(trials: list[Trial]) -> Trial:
    """Dispatch it as another submit does."""
    return build_trial(len(trials) + 1, uuid=uuid.uuid4().hex)


def begin(history, choose=next_trial, last=None) -> Trial:
    """Store a trial of the job ``digits``, by default its next recurrence."""
    return factories.begin(history, choose, last, "digits")


def end(status: TrialStatus, trial: str = "digits-5-1"):
    """Return a change that ends a trial, by default the newest one."""
    return lambda history: history.finish(trial, replace(REACHED, status=status))


MAKES_STALE = {
    "a trial begins": begin,
    "a preempted trial goes on": lambda h: begin(h, h.find("digits-2-1").resume(LATER)),
    "a trial is preempted": end(TrialStatus.PREEMPTED),
    "a preempted trial is cancelled": lambda h: h.finish(
        "digits-2-1",
        h.find("digits-2-1").ended_as(TrialStatus.CANCELLED, ReasonCode.CANCELLED, "", LATER),
    ),
    "a trial is forgotten": lambda h: h.forget("digits-1-1", forgotten=True),
    "a trial is forgotten no longer": lambda h: h.forget("digits-4-1", forgotten=False),
    "an ended trial is added": lambda h: h.add([build_trial(6).finish(REACHED)]),
    "a running trial is added": lambda h: h.add([build_trial(6)]),
    "a trial is added as preempted": lambda h: h.add([h.find("digits-5-1").finish(PREEMPTED)]),
}
"""Changes of ``start_changing`` after which a choice from before must be made again."""
MAKES_NOTHING_STALE = {
    **{
        f"a trial ends as {s.value}": end(s)
        for s in TrialStatus
        if s.finished and s.value != "PREEMPTED"
    },
    "a late result replaces LOST": end(TrialStatus.REACHED, "digits-3-1"),
    "a result is added": lambda h: h.add([h.find("digits-5-1").finish(REACHED)]),
    "a heartbeat": lambda h: h.renew("digits-5-1", {"epoch": 1}),
    "the same mark again": lambda h: h.forget("digits-4-1", forgotten=True),
    "a trial of another job begins": lambda h: begin(h, build_trial(job="other")),
    "a turn is taken": lambda h: h.ask_turn("digits"),
}


def start_changing(history) -> str:
    """Store five trials, of which the last one runs; return the version."""
    for number in range(1, 6):
        begin(history)
        ends = {2: PREEMPTED, 3: replace(REACHED, status=TrialStatus.LOST), 5: None}
        if (outcome := ends.get(number, REACHED)) is not None:
            history.finish(f"digits-{number}-1", outcome)
    history.forget("digits-4-1", forgotten=True)
    return history.snapshot("digits").version


class HistoryContract:
    def test_an_unknown_job_has_no_trials(self, history):
        assert history.trials("digits") == []
        assert history.jobs() == []

    def test_what_begins_is_read_back_dispatched(self, history):
        trial = begin(history)
        assert trial == build_trial(1, uuid=trial.uuid)
        assert history.trials("digits") == [trial]
        assert history.find("digits-1-1") == trial

    def test_what_finishes_is_read_back_with_its_outcome(self, history):
        begun = begin(history)
        finished = history.finish(begun.trial, REACHED)
        assert finished == begun.finish(REACHED)
        assert history.trials("digits") == [finished]
        assert history.find(begun.trial) == finished

    def test_interruptions_are_read_back(self, history):
        interrupted = replace(REACHED, interruptions=(Interruption(1.5, 0), Interruption(3.0, 1)))
        finished = history.finish(begin(history).trial, interrupted)
        assert history.find(finished.trial).interruptions == interrupted.interruptions

    def test_the_numbers_of_ranks_of_an_elastic_training_are_read_back(self, history):
        changes = (WorldChange(0.0, 0, 2), WorldChange(4.5, 1, 4))
        finished = history.finish(begin(history).trial, replace(REACHED, world_sizes=changes))
        assert history.find(finished.trial).world_sizes == changes

    def test_trials_stay_in_the_order_they_began(self, history):
        for _ in range(12):
            begin(history)
        history.finish("digits-3-1", REACHED)
        assert [trial.recurrence for trial in history.trials("digits")] == list(range(1, 13))

    def test_a_snapshot_has_the_trials_so_far(self, history):
        assert history.snapshot("digits").trials == ()
        begin(history)
        finished = history.finish("digits-1-1", REACHED)
        assert history.snapshot("digits").trials == (finished,)

    @pytest.mark.parametrize("last", [None, 0, 1, 3, 4, 9])
    def test_the_newest_trials_are_given_oldest_first(self, history, last):
        for _ in range(4):
            begin(history)
        newest = list(range(1, 5))[0 if last is None else max(0, 4 - last) :]
        assert [trial.recurrence for trial in history.trials("digits", last)] == newest
        assert [trial.recurrence for trial in history.snapshot("digits", last).trials] == newest
        assert history.trials("other", last) == []
        assert history.snapshot("other", last).trials == ()

    def test_a_preempted_trial_goes_on_in_its_place(self, history):
        begin(history)
        preempted = history.finish("digits-1-1", PREEMPTED)
        second = begin(history)
        resumed = preempted.resume(LATER)
        assert begin(history, resumed) == resumed
        assert history.trials("digits") == [resumed, second]
        assert history.find("digits-1-1") == resumed
        finished = history.finish("digits-1-1", REACHED)
        assert finished == resumed.finish(REACHED)
        assert finished.preemptions == 1
        assert history.trials("digits") == [finished, second]

    def test_a_trial_can_go_on_as_often_as_it_is_preempted(self, history):
        begin(history)
        for count in (1, 2, 3):
            preempted = history.finish("digits-1-1", PREEMPTED)
            begin(history, preempted.resume(LATER))
            assert [trial.preemptions for trial in history.trials("digits")] == [count]

    def test_a_preempted_trial_that_is_not_in_the_snapshot_can_go_on(self, history):
        begin(history)
        preempted = history.finish("digits-1-1", PREEMPTED)
        begin(history)
        resumed = preempted.resume(LATER)
        begin(history, resumed, last=1)
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
        begin(history)
        preempted = history.finish("digits-1-1", PREEMPTED)
        wrong = replace(preempted.resume(LATER), **other)
        with pytest.raises(ValueError, match=r"digits-1-1"):
            begin(history, wrong)
        assert history.trials("digits") == [preempted]

    @pytest.mark.parametrize("status", [s for s in TrialStatus if s.finished])
    def test_of_the_finished_trials_only_a_preempted_and_a_lost_one_may_be_cancelled(
        self, history, status
    ):
        begin(history, build_trial(1))
        known = history.finish("digits-1-1", replace(REACHED, status=status))
        ended = known.ended_as(
            TrialStatus.CANCELLED, ReasonCode.CANCELLED, "nobody wants it", LATER
        )
        if status is TrialStatus.CANCELLED:
            ended = replace(ended, status=TrialStatus.FAILED)
        if status in {TrialStatus.PREEMPTED, TrialStatus.LOST}:
            cancelled = history.finish("digits-1-1", ended)
            assert (cancelled.status, cancelled.reason) == (
                TrialStatus.CANCELLED,
                "nobody wants it",
            )
            assert cancelled == replace(
                known,
                status=cancelled.status,
                reason=cancelled.reason,
                reason_code=ReasonCode.CANCELLED,
                finished_at=cancelled.finished_at,
            )
        else:
            with pytest.raises(ValueError, match="never changes"):
                history.finish("digits-1-1", ended)
            assert history.trials("digits") == [known]

    @pytest.mark.parametrize("status", [s for s in TrialStatus if s is not TrialStatus.PREEMPTED])
    def test_only_a_preempted_trial_goes_on(self, history, status):
        known = begin(history)
        if status.finished:
            known = history.finish("digits-1-1", replace(REACHED, status=status))
        again = replace(known, status=TrialStatus.DISPATCHED, preemptions=1)
        with pytest.raises(ValueError, match="already"):
            begin(history, again)
        assert history.trials("digits") == [known]

    def test_jobs_are_kept_apart_and_listed_by_name(self, history):
        other = begin(history, build_trial(job="a.b_c-1"))
        begin(history)
        assert history.jobs() == ["a.b_c-1", "digits"]
        assert history.trials("a.b_c-1") == [other]
        assert history.find("a.b_c-1-1-1") == other

    @pytest.mark.parametrize("trial", ["digits-2-1", "other-1-1", "digits", "", "../digits-1-1"])
    def test_an_id_that_is_not_there_is_not_found(self, history, trial):
        begin(history)
        assert history.find(trial) is None
        with pytest.raises(HistoryError, match="no trial"):
            history.finish(trial, REACHED)
        assert history.jobs() == ["digits"]

    def test_a_finished_trial_never_changes(self, history):
        begin(history)
        finished = history.finish("digits-1-1", REACHED)
        with pytest.raises(ValueError, match="never changes"):
            history.finish("digits-1-1", replace(REACHED, cost_j=1.0))
        assert history.trials("digits") == [finished]

    def test_the_same_outcome_again_changes_nothing(self, history):
        begin(history)
        finished = history.finish("digits-1-1", REACHED)
        assert history.finish("digits-1-1", REACHED) == finished
        assert history.trials("digits") == [finished]

    def test_a_late_result_replaces_lost(self, history):
        begun = begin(history)
        history.finish("digits-1-1", Outcome(TrialStatus.LOST, "no heartbeat", LATER))
        assert history.finish("digits-1-1", REACHED) == begun.finish(REACHED)
        assert history.find("digits-1-1") == begun.finish(REACHED)

    @pytest.mark.parametrize("number", [1, 12])
    def test_a_trial_is_forgotten_and_learned_from_again(self, history, number):
        for count in range(1, 13):
            begin(history)
            history.finish(f"digits-{count}-1", REACHED)
        before = history.trials("digits")
        marked = history.forget(f"digits-{number}-1", forgotten=True)
        assert marked == replace(before[number - 1], forgotten=True)
        after = [*before[: number - 1], marked, *before[number:]]
        assert history.trials("digits") == after
        begin(history)  # what is written next keeps the mark
        assert history.find(marked.trial) == marked
        assert history.trials("digits")[:-1] == after
        assert history.forget(marked.trial, forgotten=False) == before[number - 1]
        assert history.trials("digits")[:-1] == before

    def test_only_what_has_ended_is_forgotten(self, history):
        begun = begin(history)
        with pytest.raises(ValueError, match="DISPATCHED and cannot be forgotten"):
            history.forget(begun.trial, forgotten=True)
        with pytest.raises(HistoryError, match="no trial"):
            history.forget("digits-2-1", forgotten=True)
        assert history.trials("digits") == [begun]

    def test_an_outcome_must_be_an_end(self, history):
        begun = begin(history)
        unfinished = Outcome(TrialStatus.DISPATCHED, "not yet", "2025-06-01T12:00:09Z")
        with pytest.raises(ValueError, match="cannot be DISPATCHED"):
            history.finish("digits-1-1", unfinished)
        assert history.trials("digits") == [begun]

    @pytest.mark.parametrize(
        "wrong",
        [
            build_trial(1, uuid="0" * 32),
            build_trial(2, job="other", trial="digits-2-1"),
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
        first = begin(history)
        with pytest.raises(ValueError, match=r"trial|digits"):
            begin(history, wrong)
        assert history.trials("digits") == [first]
        assert history.jobs() == ["digits"]

    def test_an_outcome_that_would_not_read_back_is_refused_and_not_stored(self, history):
        begun = begin(history)
        endless = Outcome(TrialStatus.MISSED, "", "", curve=(CurvePoint(1, float("nan"), None, 1),))
        with pytest.raises(ValueError, match="cannot be stored"):
            history.finish("digits-1-1", endless)
        assert history.trials("digits") == [begun]

    @pytest.mark.parametrize(
        "job",
        [
            "",
            ".",
            "..",
            ".hidden",
            "../up",
            "a/b",
            "/etc",
            "a\0b",
            "a\n",
            "-rf",
            "a b",
            "jõb",
            "x" * 65,
        ],
    )
    def test_a_job_name_that_is_no_file_name_is_refused(self, history, job):
        with pytest.raises(ValueError, match="name of a job"):
            history.trials(job)
        with pytest.raises(ValueError, match="name of a job"):
            begin(history, build_trial(job=job))

    def test_the_lists_given_out_are_copies(self, history):
        begin(history)
        history.trials("digits").clear()
        assert len(history.trials("digits")) == 1

    def test_the_version_stays_as_long_as_nothing_changes(self, history):
        for _ in range(2):
            before = history.snapshot("digits")
            history.trials("digits")
            history.find("digits-1-1")
            assert history.snapshot("digits") == before
            assert history.snapshot("digits", 0).version == before.version
            begin(history)

    def test_another_job_does_not_change_the_version(self, history):
        begin(history)
        version = history.snapshot("digits").version
        begin(history, build_trial(job="other"))
        assert history.begin(build_trial(2), after=version) == build_trial(2)

    @pytest.mark.parametrize("change", MAKES_STALE.values(), ids=MAKES_STALE)
    def test_a_choice_is_stale_after(self, history, change):
        version = start_changing(history)
        change(history)
        after = history.trials("digits")
        for number in (5, 6, 7):
            trial = build_trial(number, uuid="0" * 32)
            with pytest.raises(Conflict, match="history of digits has changed"):
                history.begin(trial, after=version)
        assert history.trials("digits") == after
        assert history.begin(build_trial(7), after=history.snapshot("digits").version)

    @pytest.mark.parametrize("change", MAKES_NOTHING_STALE.values(), ids=MAKES_NOTHING_STALE)
    def test_a_choice_is_as_good_as_before_after(self, history, change):
        version = start_changing(history)
        change(history)
        before = history.trials("digits")
        assert history.begin(build_trial(6), after=version) == build_trial(6)
        assert history.trials("digits") == [*before, build_trial(6)]

    def test_a_version_is_good_for_one_begin(self, history):
        version = history.snapshot("digits").version
        history.begin(build_trial(1), after=version)
        with pytest.raises(Conflict):
            history.begin(build_trial(2), after=version)
        assert history.trials("digits") == [build_trial(1)]

    def test_what_was_undone_is_no_conflict_for_what_is_chosen_afterwards(self, history):
        begin(history)
        history.finish("digits-1-1", REACHED)
        history.forget("digits-1-1", forgotten=True)
        history.forget("digits-1-1", forgotten=False)
        assert begin(history).recurrence == 2

    # Turns.

    def test_turns_come_in_the_order_in_which_they_were_asked_for(self, history):
        first, second = history.ask_turn("digits"), history.ask_turn("digits")
        assert (first.ahead, first.waiting) == (0, 1)
        assert (second.ahead, second.waiting) == (1, 2)
        assert history.ask_turn("digits", first.number) == (first.number, 0, 2)
        history.leave_turn("digits", first.number)
        assert history.ask_turn("digits", second.number) == (second.number, 0, 1)

    def test_a_turn_is_of_one_job(self, history):
        history.ask_turn("digits")
        assert history.ask_turn("other").ahead == 0

    def test_a_turn_begins_one_trial_and_ends(self, history):
        turn, version = history.ask_turn("digits").number, history.snapshot("digits").version
        trial = history.begin(build_trial(1), after=version, turn=turn)
        assert history.ask_turn("digits").ahead == 0
        with pytest.raises(Conflict, match="has changed"):
            history.begin(build_trial(2), after=version, turn=turn)
        assert history.trials("digits") == [trial]

    def test_nobody_begins_before_those_who_are_ahead(self, history):
        first, second = history.ask_turn("digits"), history.ask_turn("digits")
        version = history.snapshot("digits").version
        with pytest.raises(Conflict, match="others are ahead"):
            history.begin(build_trial(1), after=version, turn=second.number)
        assert history.trials("digits") == []
        assert history.ask_turn("digits", second.number) == second
        history.begin(build_trial(1), after=version, turn=first.number)

    def test_a_turn_that_has_expired_blocks_nobody(self, history, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(turns, "TURN_S", -1.0)
            expired = history.ask_turn("digits").number
        following = history.ask_turn("digits")
        assert following.ahead == 0
        again = history.ask_turn("digits", expired)
        assert again.number > following.number
        assert again.ahead == 1

    def test_a_turn_that_has_expired_begins_what_is_not_stale(self, history, monkeypatch):
        """As on a machine that is too busy to renew it."""
        with monkeypatch.context() as patch:
            patch.setattr(turns, "TURN_S", -1.0)
            first, second = (history.ask_turn("digits").number for _ in range(2))
        version, behind = history.snapshot("digits").version, history.ask_turn("digits").number
        history.begin(build_trial(1), after=version, turn=first)
        with pytest.raises(Conflict, match="has changed"):
            history.begin(build_trial(2), after=version, turn=second)
        with pytest.raises(Conflict, match="has changed"):
            history.begin(build_trial(2), after=version, turn=behind)
        history.begin(build_trial(2), after=history.snapshot("digits").version, turn=behind)

    def test_a_stale_choice_keeps_its_turn(self, history):
        version, turn = history.snapshot("digits").version, history.ask_turn("digits").number
        begin(history)
        with pytest.raises(Conflict, match="has changed"):
            history.begin(build_trial(2), after=version, turn=turn)
        assert history.ask_turn("digits").ahead == 1
        history.begin(build_trial(2), after=history.snapshot("digits").version, turn=turn)

    def test_a_trial_that_is_refused_keeps_its_turn(self, history):
        begin(history, build_trial(1))
        version, turn = history.snapshot("digits").version, history.ask_turn("digits").number
        with pytest.raises(ValueError, match="already"):
            history.begin(build_trial(1, uuid="0" * 32), after=version, turn=turn)
        assert history.ask_turn("digits", turn) == (turn, 0, 1)

    def test_a_turn_is_left_more_than_once(self, history):
        turn = history.ask_turn("digits").number
        for _ in range(2):
            history.leave_turn("digits", turn)
        assert history.ask_turn("digits").number > turn

    def test_a_turn_makes_no_history(self, history):
        history.ask_turn("digits")
        assert history.jobs() == []
        assert history.trials("digits") == []

    @pytest.mark.parametrize("job", ["", "../up", "x" * 65])
    def test_there_is_no_turn_of_what_can_be_no_job(self, history, job):
        with pytest.raises(ValueError, match="name of a job"):
            history.ask_turn(job)

    def test_threads_that_take_turns_never_conflict(self, history):
        start, failures = threading.Barrier(8), []

        def submit():
            start.wait()
            try:
                with HeldTurn(history, "digits", lambda _: None, lambda: None) as turn:
                    turn.wait()
                    snapshot = history.snapshot("digits")
                    turn.begin(another_next_trial(list(snapshot.trials)), snapshot.version)
            except Conflict as error:
                failures.append(error)

        threads = [threading.Thread(target=submit) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert [trial.recurrence for trial in history.trials("digits")] == list(range(1, 9))

    def test_of_the_threads_that_have_chosen_from_the_same_snapshot_one_begins(self, history):
        begin(history)
        version = history.snapshot("digits").version
        chosen, begun = threading.Barrier(4), []

        def choose(attempt):
            chosen.wait()
            with suppress(Conflict):
                begun.append(history.begin(build_trial(2, attempt), after=version))

        threads = [threading.Thread(target=choose, args=(attempt,)) for attempt in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert history.trials("digits") == [build_trial(1), *begun]
        assert len(begun) == 1

    def test_threads_that_choose_again_after_a_conflict_all_begin(self, history):
        start = threading.Barrier(8)

        def submit():
            start.wait()
            begin(history, another_next_trial)

        threads = [threading.Thread(target=submit) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [trial.recurrence for trial in history.trials("digits")] == list(range(1, 9))

    def test_only_a_history_with_an_address_keeps_leases(self, history):
        assert history.keeps_leases("digits") is (history.address("digits") is not None)

    def test_a_heartbeat_and_what_pages_show_change_no_trial(self, history):
        begun = begin(history)
        version = history.snapshot("digits").version
        history.renew(begun.trial, {"epoch": 1})
        history.keep_trace(begun.trial, {"power_w": [1.0]})
        history.report_host("gpu1", {})
        history.deliver()
        assert history.live(begun.trial) in (None, {"epoch": 1})
        assert history.snapshot("digits") == ((begun,), version, False)

    def test_trials_of_another_history_are_stored_once(self, history):
        first, second = build_trial(1).finish(REACHED), build_trial(2)
        assert history.add([first, second]) == [first, second]
        assert history.add([first, second.finish(REACHED)]) == [first, second.finish(REACHED)]
        version = history.snapshot("digits").version
        assert history.add([first, second]) == [first, second.finish(REACHED)]
        assert history.add([]) == []
        assert history.trials("digits") == [first, second.finish(REACHED)]
        assert history.snapshot("digits").version == version
        with pytest.raises(ValueError, match="digits"):
            history.add([build_trial(4), build_trial(3, trial="digits-9-9")])
        assert history.count("digits") == 2

    def test_any_trial_survives(self, history):
        # Inside, because an inherited property would be replayed on one back end after failing on
        # another. All examples share one history: each adds to what the others left.
        @given(choice=choices, outcome=outcomes)
        def check(choice, outcome):
            earlier = history.trials("digits")
            begun = begin(history, lambda t: build_trial(len(t) + 1, **choice))
            assert history.trials("digits") == [*earlier, begun]
            finished = history.finish(begun.trial, outcome)
            assert history.trials("digits") == [*earlier, finished]

        check()
