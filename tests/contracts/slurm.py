"""What the commands of Slurm do for ``run_on/slurm/client.py``, and their stand-in as well.

A test inherits the class. It has a fixture ``slurm_is_there``, with which the commands are found.
"""

from __future__ import annotations

import time

import pytest

from tests.runs import wait_for
from zeusrun.errors import LaunchError
from zeusrun.run_on.registry import end_job, find_ended, is_job
from zeusrun.run_on.slurm.client import (
    GONE,
    cancel_job,
    interrupt_job,
    list_hosts,
    read_jobs,
    requeue_job,
    submit_script,
)
from zeusrun.run_on.slurm.submit import SUBMITTER

RUNS, ENDS = "exec sleep 600", "true"
HELD = "#SBATCH --hold\n"
UNKNOWN = "slurm:987654"


@pytest.mark.usefixtures("slurm_is_there")
class SlurmContract:
    @pytest.fixture
    def submit(self, tmp_path):
        """Submit a job; with ``state``, return its id once it has that state."""
        begun = []

        def run(last_line=RUNS, state=None, options="", dependencies=()):
            script = tmp_path / "script.sh"
            script.write_text(f"#!/bin/bash\n#SBATCH --output=/dev/null\n{options}{last_line}\n")
            begun.append(submit_script(script, dependencies, tmp_path))
            if state is not None:
                self.until(begun[-1], state)
            return begun[-1]

        yield run
        for job_id in begun:
            cancel_job(job_id)

    @staticmethod
    def until(job_id, state):
        return wait_for(
            lambda: (job := read_jobs([job_id])[job_id]).state == state and job, 60, state
        )

    def test_each_job_has_a_number_of_its_own(self, submit):
        first, second = submit(ENDS), submit(ENDS)
        assert is_job(first)
        assert first != second

    def test_a_job_that_runs_has_a_node_and_a_start(self, submit):
        job = self.until(submit(), "RUNNING")
        assert (job.nodes, job.cause, job.restarts, job.preempted) == ("n1", None, 0, False)
        assert job.start_at is not None
        assert not job.has_ended

    @pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kathmandu"])
    def test_its_times_are_right_in_every_zone(self, submit, zone):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TZ", zone)
            time.tzset()
            job = self.until(submit(), "RUNNING")
        time.tzset()
        assert job.start_at == pytest.approx(time.time(), abs=300)

    def test_a_job_that_waits_has_a_reason_and_no_node(self, submit):
        job = self.until(submit(options=HELD), "PENDING")
        assert (job.cause, job.nodes, job.end_at) == ("JobHeldUser", None, None)
        assert not job.has_ended

    def test_a_job_that_ended_has_ended(self, submit):
        job_id = submit(ENDS, "COMPLETED")
        assert read_jobs([job_id])[job_id].has_ended
        end_job(job_id, 10.0)

    def test_an_id_that_slurm_does_not_know_is_gone_alone_and_among_others(self, submit):
        job_id = submit(options=HELD)
        assert read_jobs([UNKNOWN])[UNKNOWN].state == GONE
        both = read_jobs([UNKNOWN, job_id, job_id])
        assert {each: job.state for each, job in both.items()} == {
            UNKNOWN: GONE,
            job_id: "PENDING",
        }
        assert find_ended([UNKNOWN, job_id, "k8s:1"]) == {UNKNOWN}

    @pytest.mark.parametrize("options", ["", HELD])
    def test_a_cancelled_job_ends_whether_it_ran_or_not(self, submit, options):
        job_id = submit(RUNS, "PENDING" if options else "RUNNING", options)
        end_job(job_id, 30.0)
        assert self.until(job_id, "CANCELLED").has_ended

    def test_it_is_no_error_to_cancel_or_interrupt_what_has_ended_or_is_unknown(self, submit):
        for job_id in (submit(ENDS, "COMPLETED"), UNKNOWN):
            cancel_job(job_id)
            interrupt_job(job_id)
            SUBMITTER.stop_job(job_id, 1)

    def test_a_job_that_does_not_run_yet_is_stopped_by_cancelling_it(self, submit):
        job_id = submit(RUNS, "PENDING", HELD)
        SUBMITTER.stop_job(job_id, 1)
        self.until(job_id, "CANCELLED")

    def test_a_job_that_is_queued_again_has_restarted(self, submit):
        job_id = submit(RUNS, "RUNNING")
        requeue_job(job_id)
        job = self.until(job_id, "PENDING")
        assert (job.restarts, job.has_ended, job.preempted) == (1, False, False)

    def test_an_unknown_job_cannot_be_queued_again(self):
        with pytest.raises(LaunchError, match="scontrol requeue"):
            requeue_job("slurm:x")

    def test_a_script_that_is_refused_is_told_in_slurms_words(self, submit):
        with pytest.raises(LaunchError) as refused:
            submit(options="#SBATCH --partition=nope\n")
        assert "invalid partition specified: nope; Batch job sub" in str(refused.value)
        assert "sbatch: error" not in str(refused.value)
        assert "run_on.slurm" in str(refused.value)

    @pytest.mark.parametrize(
        ("nodes", "names"),
        [
            ("n1", ("n1",)),
            ("n[1-3]", ("n1", "n2", "n3")),
            ("n[08-10,12],m1", ("n08", "n09", "n10", "n12", "m1")),
            ("a-1,b", ("a-1", "b")),
        ],
    )
    def test_the_nodes_of_a_list_are_named_in_order(self, nodes, names):
        assert list_hosts(nodes) == names
