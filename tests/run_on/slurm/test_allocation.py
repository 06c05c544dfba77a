"""What a batch step knows of its job of Slurm, and what it makes of the end of that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.factories import PREEMPTED, REACHED, build_trial
from tests.runs import wait_for
from zeusrun.clock import read_clock
from zeusrun.errors import LaunchError, UsageError
from zeusrun.reasons import ReasonCode
from zeusrun.run_on.slurm.allocation import (
    EARLY_S,
    SlurmAllocation,
    lead_s,
    open_allocation,
)
from zeusrun.run_on.slurm.client import explain_end, name_of
from zeusrun.trial import TrialStatus

INSIDE = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURMD_NODENAME": "n2"}
LEAD_S = 40.0
LATE, SOON = LEAD_S + EARLY_S, 2 * EARLY_S + LEAD_S + 60
PREEMPTED_CODE, CANCELLED_CODE = ReasonCode.PREEMPTED, ReasonCode.CANCELLED


def inside(end_in_s=None, restarts=0):
    end_at = None if end_in_s is None else read_clock() + end_in_s
    return SlurmAllocation("slurm:7", ("n1",), restarts, end_at, LEAD_S)


class Heard:
    """A sentinel that a signal has ended."""

    was_signalled = True


@pytest.mark.parametrize(
    ("job", "end_in_s", "cause", "words"),
    [
        # the state of the job, what its batch step knew of its end, and what that makes of it
        ({"restarts": 2}, None, PREEMPTED_CODE, "is queued again"),
        ({"restarts": 2, "state": "COMPLETING"}, None, PREEMPTED_CODE, "is queued again"),
        ({"restarts": 2, "state": "PENDING"}, -1, PREEMPTED_CODE, "is queued again"),
        ({"preempt": 0}, None, PREEMPTED_CODE, "preempted by another job"),
        ({"preempt": 0, "state": "COMPLETING"}, 900, PREEMPTED_CODE, "another job"),
        ({"limit": "10:00", "end": LATE}, 900, PREEMPTED_CODE, "time limit"),
        ({"limit": "10:00", "end": SOON}, 900, None, None),
        ({"limit": "2:00:00", "end": 7200}, LATE, None, None),  # it was extended
        ({"limit": "UNLIMITED", "end": "NONE"}, LATE, None, None),  # it was lifted
        ({"limit": "10:00", "end": LATE}, None, PREEMPTED_CODE, "time limit"),  # set
        ({"state": "SUSPENDED", "end": SOON, "limit": "9:00"}, 9, None, None),
        ({"state": "COMPLETING", "end": 0}, 900, CANCELLED_CODE, "was cancelled"),
        ({"state": "COMPLETING", "end": 0}, LATE, CANCELLED_CODE, "was cancelled"),
        ({"state": "COMPLETING", "end": 0}, -1, PREEMPTED_CODE, "time limit"),
        ({"state": "COMPLETING", "reason": "TimeLimit"}, 900, PREEMPTED_CODE, "time limit"),
        ({"state": "COMPLETING", "reason": "NodeDown"}, 900, PREEMPTED_CODE, "a node of"),
        ({"state": "CANCELLED"}, None, CANCELLED_CODE, "was cancelled"),
        ({"state": "TIMEOUT", "reason": "TimeLimit"}, None, PREEMPTED_CODE, "time limit"),
        (None, 900, None, None),  # Slurm does not respond
        (None, LATE, PREEMPTED_CODE, "time limit"),
        (None, None, None, None),
    ],
)
def test_slurm_says_why_it_has_sent_a_signal(slurm, job, end_in_s, cause, words):
    if job is None:
        slurm.fail("squeue")
    else:
        slurm.put("7", **{"restarts": 1, **job})
    allocation = inside(end_in_s, restarts=1)
    found = allocation.find_cause()
    assert (None if found is None else found[0]) is cause
    assert found is None or words in found[1]
    assert allocation.out_of_time is (words == "time limit")
    assert allocation.find_cause() == found
    assert len(slurm.calls("squeue")) == 1


def test_the_sentinel_alone_hears_a_preemption_and_what_it_heard_is_said_once(slurm):
    slurm.put("7", preempt=0)
    allocation = inside()
    assert allocation.check_sentinel() is None
    allocation._sentinel = Heard()
    assert allocation.check_sentinel() == "slurm:7 is preempted by another job"
    assert allocation.check_sentinel() is None
    assert allocation.find_cause() == (PREEMPTED_CODE, "slurm:7 is preempted by another job")


def test_a_sentinel_that_somebody_else_ended_hides_no_later_end(slurm):
    slurm.put("7")
    allocation = inside()
    allocation._sentinel = Heard()
    assert allocation.check_sentinel() is None
    slurm.put("7", limit="10:00", end=LATE)
    assert allocation.find_cause()[0] is PREEMPTED_CODE
    assert allocation.out_of_time


def test_an_allocation_is_read_from_the_environment_of_its_batch_step(slurm):
    slurm.put("7", limit="2:00:00", start=-600, end=6600)
    found = open_allocation({**INSIDE, "SLURM_RESTART_COUNT": "3"}, 10.0)
    assert (found.name, found.hosts, found.restarts) == ("slurm:7", ("n2", "n1"), 3)
    assert found.lead_s == 40.0
    assert found.time_left_s() == pytest.approx(6600 - 40 - EARLY_S, abs=3)


@pytest.mark.parametrize(("count", "restarts"), [("", 0), ("0", 0), ("1", 1)])
def test_a_first_start_has_no_count(slurm, count, restarts):
    slurm.put("7")
    assert open_allocation({**INSIDE, "SLURM_RESTART_COUNT": count}, 1.0).restarts == restarts


@pytest.mark.parametrize(
    "job",
    [
        {"limit": "UNLIMITED"},
        {"limit": "UNLIMITED", "end": "NONE"},
        {"limit": "1:00", "end": "N/A"},
    ],
)
def test_an_end_that_slurm_does_not_say_is_no_limit(slurm, job):
    slurm.put("7", **job)
    found = open_allocation(INSIDE, 1.0)
    assert (found.end_at, found.time_left_s()) == (None, None)
    slurm.fail("squeue")
    silent = open_allocation({**INSIDE, "SLURM_JOB_NODELIST": "n2"}, 1.0)
    assert (silent.time_left_s(), silent.is_known, silent.hosts) == (None, False, ("n2",))


def test_the_time_left_is_never_negative():
    assert inside(LATE + 100).time_left_s() == pytest.approx(100, abs=1)
    assert inside(LATE - 1).time_left_s() == 0.0
    assert inside(-100).time_left_s() == 0.0


def test_a_short_job_is_signalled_when_half_of_its_time_is_over(slurm):
    assert lead_s(10.0) == 40.0
    assert lead_s(10.0, 1000.0) == 40.0
    assert lead_s(10.0, 60.0) == 30.0
    slurm.put("7", limit="10:00", start=0, end=600)
    found = open_allocation(INSIDE, 600.0)  # as its script has it
    assert found.lead_s == 300.0
    assert found.time_left_s() == pytest.approx(300 - EARLY_S, abs=3)


@pytest.mark.parametrize("missing", ["SLURM_JOB_ID", "SLURM_JOB_NODELIST"])
def test_elsewhere_there_is_no_allocation(missing):
    with pytest.raises(UsageError, match="for the batch step of a Slurm job: `zeusrun submit`"):
        open_allocation({**INSIDE, missing: ""}, 1.0)


def test_nodes_that_slurm_does_not_name_are_told(slurm):
    slurm.put("7")
    slurm.fail("scontrol")
    with pytest.raises(LaunchError, match=r"hostnames n\[1-2\]` does not name the nodes"):
        open_allocation(INSIDE, 1.0)
    hosts = open_allocation({**INSIDE, "SLURM_JOB_NODELIST": "n2"}, 1.0).hosts
    assert hosts == ("n2",)


def test_a_batch_step_on_none_of_the_nodes_keeps_their_order(slurm):
    slurm.put("7")
    for own in ("frontend", ""):
        assert open_allocation({**INSIDE, "SLURMD_NODENAME": own}, 1.0).hosts == ("n1", "n2")


@pytest.mark.parametrize(
    ("out_of_time", "saved", "earlier_s", "time_s", "reason"),
    [
        (False, False, None, 8.5, None),  # preempted by another job: it starts from its beginning
        (True, True, None, 8.5, None),
        (True, True, 5.0, 8.5, None),
        (True, False, None, 8.5, "saved no checkpoint"),
        (True, False, None, None, "saved no checkpoint"),
        (True, True, 8.5, 8.5, "had no time to train"),  # it would start again without end
        (True, True, None, None, "had no time to train"),
    ],
)
def test_a_trial_that_ran_out_of_time_and_cannot_go_on_has_timed_out(
    out_of_time, saved, earlier_s, time_s, reason
):
    allocation = inside()
    allocation.out_of_time = out_of_time
    trial = replace(build_trial(), time_s=earlier_s)
    outcome = replace(PREEMPTED, time_s=time_s, reason_code=ReasonCode.PREEMPTED)
    found = allocation.judge(trial, outcome, saved=saved)
    if reason is None:
        assert found is outcome
    else:
        assert (found.status, found.reason_code) == (TrialStatus.STOPPED, ReasonCode.TIMEOUT)
        assert found.reason == (f"timed out: the time limit of slurm:7 ended it, and it {reason}")
        assert found.time_s == time_s


def test_what_ended_otherwise_is_not_judged_again():
    allocation = inside()
    allocation.out_of_time = True
    for status in set(TrialStatus) - {TrialStatus.PREEMPTED}:
        outcome = replace(REACHED, status=status)
        assert allocation.judge(build_trial(), outcome, saved=False) is outcome


@pytest.mark.parametrize(
    ("state", "saved", "status"),
    [
        ("CANCELLED", True, TrialStatus.CANCELLED),
        ("PREEMPTED", False, TrialStatus.PREEMPTED),
        ("TIMEOUT", True, TrialStatus.PREEMPTED),
        ("TIMEOUT", False, TrialStatus.LOST),
        ("NODE_FAIL", True, TrialStatus.PREEMPTED),
        ("NODE_FAIL", False, None),
        ("OUT_OF_MEMORY", True, None),
        ("COMPLETED", True, None),
    ],
)
def test_the_end_of_its_job_says_what_became_of_a_trial(slurm, state, saved, status):
    slurm.put("7", state)
    assert explain_end("slurm:7", saved=saved) == (status, f"slurm:7 ended as {state}")


def test_a_job_that_is_forgotten_or_unknown_says_nothing(slurm):
    slurm.put("7", "CANCELLED", forgotten=True)
    assert explain_end("slurm:7", saved=True) is None
    slurm.put("7", "CANCELLED", forgotten=True, account="CANCELLED by 0")
    assert explain_end("slurm:7", saved=True)[0] is TrialStatus.CANCELLED
    slurm.fail("squeue")
    assert explain_end("slurm:7", saved=True) is None


@pytest.mark.long
class TestSlurm:
    """What the real one says when it signals a batch step."""

    IGNORES_TERM = "trap '' TERM; while :; do sleep 0.1; done"

    @pytest.fixture
    def slurm(self, cluster, monkeypatch):
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        yield cluster
        cluster.clear()

    @staticmethod
    def cause_of(job_id, restarts=0):
        return SlurmAllocation(name_of(job_id), ("n1",), restarts, None, LEAD_S).find_cause()

    def begin(self, slurm, *options):
        job_id = slurm.submit(self.IGNORES_TERM, *options)
        slurm.wait_for(job_id, "RUNNING")
        assert self.cause_of(job_id) is None
        return job_id

    def test_a_cancelled_job_was_cancelled(self, slurm):
        job_id = self.begin(slurm)
        slurm.do("scancel", job_id)
        assert self.cause_of(job_id) == (CANCELLED_CODE, f"slurm:{job_id} was cancelled")

    def test_a_job_with_a_dead_node_was_not_cancelled(self, slurm):
        job_id = self.begin(slurm, "--nodes=2", "--no-requeue")
        slurm.kill_node("n2")
        assert self.cause_of(job_id) == (PREEMPTED_CODE, f"a node of slurm:{job_id} is down")

    def test_a_preempted_job_is_so_until_it_starts_again(self, slurm):
        job_id = self.begin(slurm, "--exclusive", "--nodes=2", "--requeue")
        urgent = slurm.submit("sleep 600", "--partition=urgent", "--exclusive", "--nodes=2")
        wait_for(lambda: self.cause_of(job_id))
        assert self.cause_of(job_id)[0] is PREEMPTED_CODE
        slurm.wait_for(urgent, "RUNNING")
        assert self.cause_of(job_id) == (PREEMPTED_CODE, f"slurm:{job_id} is queued again")
        slurm.do("scancel", urgent)
        slurm.hasten(job_id)
        slurm.wait_for(job_id, "RUNNING")
        assert self.cause_of(job_id, restarts=1) is None
