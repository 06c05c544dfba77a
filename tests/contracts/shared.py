"""What a history that several machines share must do beyond ``HistoryContract``.

A back end inherits the class and gives two fixtures: ``history``, and ``database``, the
``SqlHistory`` in which it ends (itself, or that of its server).
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace

import pytest

from tests.contracts.history import LATER, begin, build_trial
from tests.databases import expire_lease, lease_held
from tests.factories import PREEMPTED, REACHED
from zeusrun.errors import HistoryError
from zeusrun.history.base import Conflict, Shared
from zeusrun.history.rules import offline_name
from zeusrun.reasons import ReasonCode
from zeusrun.trial import Outcome, TrialStatus


def with_uuid(recurrence=1, **values):
    return build_trial(recurrence, uuid=uuid.uuid4().hex, **values)


def offline_trial(job="digits", **values):
    """Return a trial as a launcher begins it while the server does not respond."""
    name = uuid.uuid4().hex
    trial = offline_name(job, name)
    return build_trial(1, job=job, trial=trial, uuid=name, run_dir=f"runs/{job}/{trial}", **values)


class SharedContract:
    def test_it_is_shared(self, history):
        assert isinstance(history, Shared)

    # Changes.

    def test_an_unknown_job_has_no_changes(self, history):
        found = history.changes("digits", None)
        assert (found.trials, found.total) == ((), 0)
        assert found.version == history.snapshot("digits").version

    def test_without_a_version_the_newest_trials_are_given(self, history):
        trials = [begin(history) for _ in range(4)]
        found = history.changes("digits", None, 3)
        assert found.trials == tuple(trials[1:])
        assert (found.total, found.whole) == (4, True)
        assert history.changes("digits", None).trials == tuple(trials)
        assert history.changes("digits", None, 0).trials == ()

    def test_after_a_version_only_what_changed_is_given(self, history):
        for _ in range(4):
            begin(history)
        before = history.changes("digits", None)
        finished = history.finish("digits-2-1", REACHED)
        new = begin(history)
        after = history.changes("digits", before.version, 1000)
        assert after.trials == (finished, new)
        assert (after.total, after.whole) == (5, False)
        assert after.version == history.snapshot("digits").version
        merged = {each.trial: each for each in (*before.trials, *after.trials)}
        assert list(merged.values()) == history.trials("digits")

    def test_nothing_changes_by_itself(self, history):
        begin(history)
        before = history.changes("digits", None)
        again = history.changes("digits", before.version)
        assert again == ((), before.version, 1, False)

    def test_a_resumed_trial_has_changed(self, history):
        begin(history)
        preempted = history.finish("digits-1-1", PREEMPTED)
        before = history.changes("digits", None)
        resumed = begin(history, preempted.resume(LATER))
        after = history.changes("digits", before.version)
        assert after.trials == (resumed,)

    def test_if_more_has_changed_than_is_asked_for_the_newest_are_given(self, history):
        trials = [begin(history)]
        before = history.changes("digits", None)
        trials += [begin(history) for _ in range(4)]
        found = history.changes("digits", before.version, 3)
        assert found.trials == tuple(trials[2:])
        assert found.whole
        assert not history.changes("digits", before.version, 4).whole

    @pytest.mark.parametrize(
        "after", ["", "nonsense", "a:1", "a:b:c", ":", "0" * 32 + ":1", "\u0661:\u0661"]
    )
    def test_a_version_of_another_database_is_unknown(self, history, after):
        trial = begin(history)
        found = history.changes("digits", after)
        assert (found.trials, found.whole) == ((trial,), True)

    @pytest.mark.parametrize("end", ["x", "-1", "", "9" * 40, "\u0663"])
    def test_an_impossible_version_of_this_database_is_unknown(self, history, end):
        trial = begin(history)
        incarnation = history.changes("digits", None).version.partition(":")[0]
        found = history.changes("digits", f"{incarnation}:{end}")
        assert (found.trials, found.whole) == ((trial,), True)
        with pytest.raises(Conflict):
            history.begin(build_trial(2), after=f"{incarnation}:{end}")

    # Idempotence.

    def test_the_same_begin_again_only_renews_the_lease(self, history, database):
        trial, version = with_uuid(), history.snapshot("digits").version
        assert history.begin(trial, after=version) == trial
        begun = history.snapshot("digits")
        expire_lease(database, trial.trial)
        assert history.begin(trial, after=version) == trial
        assert history.snapshot("digits") == begun

    def test_the_same_resumption_again_changes_nothing(self, history):
        begin(history, with_uuid())
        preempted = history.finish("digits-1-1", PREEMPTED)
        version, resumed = history.snapshot("digits").version, preempted.resume(LATER)
        assert history.begin(resumed, after=version) == resumed
        begun = history.snapshot("digits")
        assert history.begin(resumed, after=version) == resumed
        assert history.snapshot("digits") == begun

    def test_another_trial_with_the_same_uuid_is_refused(self, history):
        trial = begin(history, with_uuid())
        for other in (
            replace(trial, why="another"),
            build_trial(2, uuid=trial.uuid),
            build_trial(2, job="other", uuid=trial.uuid),
        ):
            with pytest.raises(ValueError, match=r"trial|uuid"):
                begin(history, other)
        assert history.trials("digits") == [trial]
        assert history.trials("other") == []

    def test_another_trial_with_the_same_id_is_refused(self, history):
        trial = begin(history, with_uuid())
        for other in (with_uuid(), build_trial(1)):
            with pytest.raises(ValueError, match="already"):
                begin(history, other)
        assert history.trials("digits") == [trial]

    @pytest.mark.parametrize("name", ["x", "A" * 32, "0" * 31, "0" * 33, "", "\u0661" * 32])
    def test_a_uuid_that_is_none_is_refused(self, history, name):
        with pytest.raises(ValueError, match="32 hex digits"):
            begin(history, build_trial(1, uuid=name))
        assert history.jobs() == []

    def test_a_trial_is_named_by_its_uuid_too(self, history, database):
        trial = begin(history, with_uuid())
        assert history.find(trial.uuid) == trial
        history.renew(trial.uuid)
        assert lease_held(database, trial.uuid)
        finished = history.finish(trial.uuid, REACHED)
        assert history.find(trial.trial) == finished
        assert history.forget(trial.uuid, forgotten=True).forgotten
        assert history.find("0" * 32) is None

    @pytest.mark.parametrize(
        "name", ["digits-2-1", "0" * 32, "", "a\0b", "\udcff", "x" * 1000, "%", "digits-1-1 "]
    )
    def test_what_no_trial_is_called_is_unknown(self, history, name):
        begin(history)
        assert history.find(name) is None
        for call in (
            lambda: history.renew(name),
            lambda: history.live(name),
            lambda: history.keep_trace(name, {}),
            lambda: history.finish(name, REACHED),
            lambda: history.forget(name, forgotten=True),
        ):
            with pytest.raises(HistoryError, match="no trial"):
                call()

    # Leases.

    def test_a_trial_has_a_lease_until_it_ends(self, history, database):
        begin(history)
        assert lease_held(database, "digits-1-1")
        history.finish("digits-1-1", REACHED)
        assert not lease_held(database, "digits-1-1")

    def test_a_trial_without_heartbeats_is_lost(self, history, database):
        trial = begin(history, with_uuid())
        expire_lease(database, trial.trial)
        assert not lease_held(database, trial.trial)
        assert history.unfinished("digits") == []
        (lost,) = history.trials("digits")
        assert (lost.status, lost.reason_code) == (TrialStatus.LOST, ReasonCode.LEASE_EXPIRED)
        assert lost.finished_at is not None
        assert history.find(trial.trial) == lost

    def test_a_snapshot_records_what_is_lost(self, history, database):
        begin(history)
        version = history.snapshot("digits").version
        expire_lease(database, "digits-1-1")
        after = history.snapshot("digits")
        assert after.trials[0].status is TrialStatus.LOST
        assert after.version != version
        assert history.begin(build_trial(2), after=version)  # no choice is stale after a result

    def test_a_heartbeat_renews_the_lease_before_anyone_looks(self, history, database):
        trial = begin(history)
        expire_lease(database, trial.trial)
        history.renew(trial.trial)
        assert lease_held(database, trial.trial)
        assert history.unfinished("digits") == [trial]

    def test_a_heartbeat_of_a_trial_that_has_ended_changes_nothing(self, history, database):
        begin(history)
        finished = history.finish("digits-1-1", REACHED)
        version = history.snapshot("digits").version
        history.renew("digits-1-1", {"epoch": 3})
        assert history.snapshot("digits") == ((finished,), version, False)
        assert not lease_held(database, "digits-1-1")

    def test_a_heartbeat_is_no_change(self, history, database):
        begin(history)
        version = history.snapshot("digits").version
        history.renew("digits-1-1", {"epoch": 1, "metric": 0.5, "warnings": ["\udcff\0"]})
        assert history.live("digits-1-1") == {"epoch": 1, "metric": 0.5, "warnings": ["\udcff\0"]}
        history.renew("digits-1-1")
        assert history.live("digits-1-1")["epoch"] == 1
        assert history.snapshot("digits").version == version

    def test_a_heartbeat_says_that_somebody_has_asked_to_cancel_the_trial(self, history):
        trial = begin(history)
        assert history.renew(trial.trial, {"epoch": 1}) is False
        version = history.snapshot("digits").version
        assert history.ask_to_cancel(trial.trial) is True
        assert history.renew(trial.trial) is True
        assert history.renew(trial.trial, {"epoch": 2}) is True
        assert history.snapshot("digits").version == version

    def test_what_does_not_run_is_not_asked_to_cancel(self, history):
        trial = begin(history)
        history.ask_to_cancel(trial.trial)
        preempted = history.finish(trial.trial, PREEMPTED)
        assert history.ask_to_cancel(trial.trial) is False
        begin(history, preempted.resume(LATER))
        assert history.renew(trial.trial) is False
        with pytest.raises(HistoryError, match="no trial"):
            history.ask_to_cancel("digits-9-1")

    def test_what_is_known_of_a_lost_trial_is_kept_for_its_late_result(self, history, database):
        trial = begin(history, with_uuid())
        history.renew(trial.trial, {"epoch": 3})
        expire_lease(database, trial.trial)
        assert history.unfinished("digits") == []
        assert history.live(trial.trial) == {"epoch": 3}
        lost = history.find(trial.trial)
        history.finish(trial.trial, lost.ended_as(TrialStatus.LOST, None, "still lost", LATER))
        assert history.live(trial.uuid) == {"epoch": 3}
        history.finish(trial.trial, REACHED)
        assert history.live(trial.trial) is None

    def test_a_late_result_replaces_lost_and_counts_once(self, history, database):
        trial = begin(history, with_uuid())
        expire_lease(database, trial.trial)
        assert history.unfinished("digits") == []
        finished = history.finish(trial.uuid, REACHED)
        assert finished == trial.finish(REACHED)
        version = history.snapshot("digits").version
        assert history.finish(trial.uuid, REACHED) == finished
        assert history.snapshot("digits") == ((finished,), version, False)

    def test_a_resumed_trial_has_a_lease_again(self, history, database):
        begin(history)
        history.renew("digits-1-1", {"epoch": 1})
        preempted = history.finish("digits-1-1", PREEMPTED)
        resumed = begin(history, preempted.resume(LATER))
        assert lease_held(database, "digits-1-1")
        assert history.unfinished("digits") == [resumed]
        assert history.live("digits-1-1") is None

    # What is added.

    def test_trials_of_another_history_are_added_as_they_are(self, history):
        trials = [
            with_uuid(1).finish(REACHED),
            build_trial(2).finish(PREEMPTED),
            build_trial(1, job="other").finish(REACHED).forget(forgotten=True),
        ]
        assert history.add(trials) == trials
        assert history.trials("digits") == trials[:2]
        assert history.trials("other") == trials[2:]
        version = history.snapshot("digits").version
        assert history.add(trials) == trials
        assert history.snapshot("digits") == (tuple(trials[:2]), version, False)
        assert history.add([]) == []

    def test_what_is_added_is_a_change(self, history):
        begin(history)
        before = history.changes("digits", None)
        history.add([build_trial(2).finish(REACHED), build_trial(3).finish(REACHED)])
        after = history.changes("digits", before.version)
        assert [trial.recurrence for trial in after.trials] == [2, 3]
        assert not after.whole
        with pytest.raises(Conflict):
            history.begin(build_trial(4), after=before.version)

    def test_older_trials_that_are_added_come_before_those_that_are_there(self, history):
        newest = [begin(history, with_uuid(number)) for number in (9, 10)]
        before = history.changes("digits", None)
        old = history.add([with_uuid(each).finish(REACHED) for each in (2, 1)])[::-1]
        assert history.changes("digits", before.version).trials == tuple(old)
        assert history.changes("digits", None, 2).trials == tuple(newest)
        assert history.trials("digits") == [*old, *newest]
        assert history.unfinished("digits") == newest
        assert begin(history, with_uuid(11)) == history.trials("digits", 1)[0]

    def test_what_is_added_while_it_runs_has_a_lease(self, history, database):
        (trial,) = history.add([with_uuid()])
        assert lease_held(database, trial.trial)
        expire_lease(database, trial.trial)
        assert history.unfinished("digits") == []

    def test_trials_are_added_all_or_none(self, history):
        first = begin(history, with_uuid())
        wrong = with_uuid(1).finish(REACHED)
        with pytest.raises(ValueError, match="another trial digits-1-1"):
            history.add([build_trial(2).finish(REACHED), wrong])
        for other in (
            build_trial(3, job="other", trial="digits-3-1"),
            build_trial(3, trial="digits-4-1"),
            build_trial(3, uuid="x"),
            build_trial(3, target=float("nan")),
            build_trial(1, job="other", uuid=first.uuid),
        ):
            with pytest.raises(ValueError, match=r"trial|job|uuid"):
                history.add([build_trial(2), other])
        assert history.trials("digits") == [first]
        assert history.jobs() == ["digits"]

    @pytest.mark.parametrize("status", [None, TrialStatus.LOST])
    def test_an_added_result_replaces_running_and_lost(self, history, database, status):
        trial = begin(history, with_uuid())
        if status is not None:
            history.finish(trial.trial, Outcome(status, "no heartbeat", LATER))
        finished = trial.finish(REACHED)
        assert history.add([finished]) == [finished]
        assert history.trials("digits") == [finished]
        assert not lease_held(database, trial.trial)

    def test_an_added_result_changes_no_other_end(self, history):
        trial = begin(history, with_uuid())
        finished = history.finish(trial.trial, REACHED)
        lost = trial.finish(Outcome(TrialStatus.LOST, "no heartbeat", LATER))
        assert history.add([lost, trial, replace(finished, cost_j=1.0)]) == [finished] * 3
        assert history.trials("digits") == [finished]

    def test_an_added_trial_goes_on_where_it_was_preempted(self, history, database):
        trial = begin(history, with_uuid())
        preempted = history.finish(trial.trial, PREEMPTED)
        resumed = preempted.resume(LATER)
        assert history.add([resumed]) == [resumed]
        assert lease_held(database, trial.trial)
        finished = resumed.finish(REACHED)
        assert history.add([preempted, finished, resumed]) == [resumed, finished, finished]
        assert history.trials("digits") == [finished]

    def test_a_trial_that_began_offline_gets_the_next_number(self, history):
        begin(history, with_uuid(7))
        running, ended = offline_trial(), offline_trial().finish(REACHED)
        numbered = [
            replace(running, trial="digits-8-1", recurrence=8, attempt=1),
            replace(ended, trial="digits-9-1", recurrence=9, attempt=1),
        ]
        assert history.add([running, ended]) == numbered
        assert history.add([ended, running]) == numbered[::-1]
        assert history.trials("digits")[1:] == numbered
        assert history.find(running.uuid) == numbered[0]
        assert history.find(running.trial) is None
        finished = history.finish(running.uuid, REACHED)
        assert finished == numbered[0].finish(REACHED)
        assert history.add([running.finish(REACHED)]) == [finished]

    def test_the_result_of_a_trial_that_began_offline_keeps_its_number(self, history):
        running = offline_trial()
        (numbered,) = history.add([running])
        assert numbered.trial == "digits-1-1"
        assert history.add([running.finish(REACHED)]) == [numbered.finish(REACHED)]
        assert len(history.trials("digits")) == 1

    def test_a_trial_that_began_offline_does_not_begin_online(self, history):
        with pytest.raises(ValueError, match="ids are"):
            begin(history, offline_trial())

    def test_trials_that_began_offline_have_numbers_of_their_own(self, history):
        start = threading.Barrier(4)

        def deliver():
            start.wait()
            history.add([offline_trial().finish(REACHED), offline_trial().finish(REACHED)])

        threads = [threading.Thread(target=deliver) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [trial.recurrence for trial in history.trials("digits")] == list(range(1, 9))

    # What the page shows.

    def test_what_a_machine_reports_is_kept(self, history, database):
        history.report_host("node-1", {"gpus": ["A"], "note": "\udcff\0"})
        history.report_host("node-2", {})
        history.report_host("node-1", {"gpus": ["A", "B"]})
        hosts = {host: facts for host, _, facts in database.hosts()}
        assert hosts == {"node-1": {"gpus": ["A", "B"]}, "node-2": {}}
        assert all(0 <= age < 3600 for _, age, _ in database.hosts())

    @pytest.mark.parametrize("host", ["", "a\0b", "\udcff", "x" * 254, "a b", "a\n"])
    def test_a_machine_must_have_a_name(self, history, host):
        with pytest.raises(ValueError, match="name of a machine"):
            history.report_host(host, {})

    def test_the_power_of_a_trial_is_kept(self, history, database):
        trial = begin(history, with_uuid())
        assert database.trace(trial.trial) is None
        history.keep_trace(trial.trial, {"power_w": [1.0, None]})
        assert database.trace(trial.uuid) == {"power_w": [1.0, None]}
        history.finish(trial.trial, REACHED)
        history.keep_trace(trial.uuid, {"power_w": [2.0]})
        assert database.trace(trial.trial) == {"power_w": [2.0]}
        assert history.trials("digits") == [trial.finish(REACHED)]

    def test_the_job_file_is_kept(self, history, database):
        assert database.settings("digits") is None
        history.keep_settings("digits", "name: digits\n")
        assert history.jobs() == []
        begin(history)
        version = history.snapshot("digits").version
        history.keep_settings("digits", "name: digits  # \u20ac \udcff\0\n")
        assert database.settings("digits") == "name: digits  # \u20ac \udcff\0\n"
        assert database.settings("other") is None
        assert history.snapshot("digits").version == version

    def test_what_is_not_json_is_refused(self, history, database):
        begin(history)
        for call in (
            lambda: history.renew("digits-1-1", {"metric": float("nan")}),
            lambda: history.keep_trace("digits-1-1", {"power_w": [float("inf")]}),
            lambda: history.report_host("node-1", {"gpus": {1, 2}}),
        ):
            with pytest.raises(ValueError, match="cannot be stored"):
                call()
        assert history.live("digits-1-1") is None
        assert database.hosts() == []
