"""The commands of Slurm as zeusrun calls them, and what it reads of their answers."""

from __future__ import annotations

import time

import pytest

from tests.contracts.slurm import SlurmContract
from zeusrun.errors import LaunchError
from zeusrun.run_on import registry
from zeusrun.run_on.registry import find_ended, is_job
from zeusrun.run_on.slurm.client import (
    GONE,
    SlurmJob,
    cancel_job,
    interrupt_job,
    name_of,
    read_jobs,
    requeue_job,
    submit_script,
)
from zeusrun.run_on.slurm.submit import SUBMITTER


class TestStandIn(SlurmContract):
    @pytest.fixture
    def slurm_is_there(self, slurm):
        pass


@pytest.mark.long
class TestSlurm(SlurmContract):
    @pytest.fixture
    def slurm_is_there(self, cluster, monkeypatch):
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("zeusrun.run_on.registry._states", {})
        yield
        cluster.clear()


@pytest.mark.parametrize(
    ("name", "job_id"),
    [
        ("slurm:12", "12"),
        ("slurm:1_2", None),
        ("slurm:1+2", None),
        ("slurm:", None),
        ("slurm:-1", None),
        ("slurm:1 ", None),
        ("slurm:1,2", None),
        ("slurm:\u0663", None),
        ("slurm:1234567890123", None),
        ("slurm:--user=me", None),
        ("k8s:12", None),
        ("12", None),
        ("", None),
    ],
)
def test_a_name_is_an_id_or_none_that_a_command_could_take_for_more(name, job_id):
    assert is_job(name) is (job_id is not None)
    assert job_id is None or name_of(job_id) == name


def test_nothing_is_asked_of_no_job(slurm):
    assert read_jobs([]) == {}
    assert find_ended(["k8s:1"]) == set()
    assert slurm.calls() == []


def test_all_jobs_are_read_with_one_command(slurm):
    for number in range(20):
        slurm.put(str(number), "PENDING")
    assert len(read_jobs([f"slurm:{number}" for number in range(20)])) == 20
    assert len(slurm.calls()) == 1


def test_what_slurm_does_not_know_is_unknown_and_not_0(slurm):
    slurm.put("1", "PENDING", restarts="N/A", start="N/A", end="NONE", limit="", nodes="")
    assert read_jobs(["slurm:1"]) == {"slurm:1": SlurmJob("PENDING")}
    slurm.put("1", "CANCELLED by 0", end="Unknown", start="2026-13-01T00:00:00", reason="")
    job = read_jobs(["slurm:1"])["slurm:1"]
    assert (job.state, job.start_at, job.end_at, job.cause) == ("CANCELLED", None, None, None)


@pytest.mark.parametrize("at", [1793494800, 1793494800 + 3600])  # both are at 01:00 local time
def test_an_hour_that_the_clocks_repeat_is_not_taken_for_the_other(slurm, monkeypatch, at):
    monkeypatch.setenv("TZ", "UTC+0XYZ-1,M3.5.0/1,M11.1.0/1")
    slurm.put("1", start=at - time.time(), end=60)
    assert read_jobs(["slurm:1"])["slurm:1"].start_at == pytest.approx(at, abs=2)


def test_a_command_that_fails_leaves_a_job_unknown_and_so_alive(slurm):
    name = slurm.put("1", "COMPLETED")
    slurm.fail("squeue", "slurm_load_jobs error: Unable to contact slurm controller")
    assert read_jobs(["slurm:1"]) == {}
    assert find_ended([name]) == set()
    assert not slurm.calls("sacct")


def test_a_command_that_is_absent_or_hangs_leaves_a_job_unknown(slurm, monkeypatch):
    (slurm.folder / "squeue").write_text("#!/bin/sh\nexec sleep 60\n")
    assert read_jobs(["slurm:1"], 0.05) == {}
    monkeypatch.setenv("PATH", "/nowhere")
    assert read_jobs(["slurm:1"]) == {}
    with pytest.raises(LaunchError, match="scancel is not on PATH"):
        cancel_job("slurm:1")


@pytest.mark.parametrize(
    ("account", "state"),
    [
        ("", GONE),  # no accounting
        ("COMPLETED", "COMPLETED"),
        ("CANCELLED by 1000", "CANCELLED"),
        ("NODE_FAIL", "NODE_FAIL"),
        ("RUNNING", GONE),  # slurmctld lost it, and the accounting never heard of its end
        ("PENDING", GONE),
    ],
)
def test_the_accounting_says_how_a_forgotten_job_ended(slurm, account, state):
    name = slurm.put("1", forgotten=True, account=account)
    assert read_jobs(["slurm:1"])["slurm:1"].state == state
    assert find_ended([name]) == {name}


def test_a_job_that_is_only_forgotten_is_gone_without_any_accounting(slurm):
    slurm.fail("sacct", "Slurm accounting storage is disabled")
    assert read_jobs(["slurm:1"]) == {"slurm:1": SlurmJob(GONE)}


def test_those_who_wait_ask_slurm_every_few_seconds(slurm):
    names = {slurm.put("1"), slurm.put("2", "COMPLETED")}
    for _ in range(3):
        assert find_ended(names) == {"slurm:2"}
    assert len(slurm.calls()) == 1
    registry.cancel_job("slurm:1")
    assert find_ended(names) == names
    assert len(slurm.calls("squeue")) == 2


def test_a_job_that_does_not_respond_is_cancelled_rather_than_asked(slurm):
    slurm.put("1")
    SUBMITTER.stop_job("slurm:1", 1)
    SUBMITTER.stop_job("slurm:1", 2)
    slurm.put("2")
    slurm.fail("squeue")
    SUBMITTER.stop_job("slurm:2", 1)
    options = ["--signal=INT", "--batch"]
    assert [each[1:] for each in slurm.calls("scancel")] == [[*options, "1"], ["1"], ["2"]]


def test_a_refused_cancel_is_told(slurm):
    slurm.fail("scancel", "scancel: error: Kill job error on job id 1: Access/permission denied")
    with pytest.raises(LaunchError, match=r"^`scancel 1` failed: .*Access/permission denied$"):
        cancel_job("slurm:1")
    interrupt_job("slurm:1")  # a file asks for the same
    slurm.fail("scontrol", "", 1)
    with pytest.raises(LaunchError, match=r"^`scontrol requeue 1` failed: exit code 1$"):
        requeue_job("slurm:1")


def test_commands_get_no_variables_that_change_what_they_do(slurm, monkeypatch, tmp_path):
    foreign = ("SQUEUE_FORMAT", "SLURM_TIME_FORMAT", "SLURM_JOB_ID", "SLURMD_NODENAME")
    foreign += ("SACCT_FORMAT", "SCANCEL_INTERACTIVE", "SCANCEL_NAME", "SLURM_CONFIG")
    own = ("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS", "HOME")
    sbatch = ("SBATCH_PARTITION", "SBATCH_TIMELIMIT", "SBATCH_OUTPUT")
    for name in (*foreign, *own, *sbatch, "SBATCH_RESERVATION", "SBATCH_ACCOUNT"):
        monkeypatch.setenv(name, "1")
    (tmp_path / "script").write_text("#!/bin/bash\nexec sleep 600\n")
    submit_script(tmp_path / "script", ["slurm:3", "slurm:4"], tmp_path, {"partition": "gpu"})
    read_jobs(["slurm:1", "slurm:9"])
    cancel_job("slurm:1")
    requeue_job("slurm:1")
    assert [each[0] for each in slurm.calls()] == [
        *("sbatch", "squeue", "sacct", "scancel", "scontrol")
    ]
    for environment in slurm.calls(key="environment"):
        assert not {*foreign} & {*environment}
        assert {*own} <= {*environment}
    (environment,), (argv,) = slurm.calls("sbatch", key="environment"), slurm.calls("sbatch")
    assert not {*sbatch} & {*environment}
    # The job file names no account.
    assert {"SBATCH_RESERVATION", "SBATCH_ACCOUNT"} <= {*environment}
    assert argv == [
        *("sbatch", "--parsable", "--export=ALL", f"--chdir={tmp_path}"),
        *("--dependency=afterany:3:4", str(tmp_path / "script")),
    ]


@pytest.mark.parametrize(
    ("answer", "job_id"),
    [
        ("12", "slurm:12"),
        ("12;other", "slurm:12"),
        ("", None),
        ("12 34", None),
        ("Submitted 12", None),
    ],
)
def test_an_answer_of_sbatch_is_an_id_or_refused(slurm, tmp_path, answer, job_id):
    (slurm.folder / "sbatch").write_text(f"#!/bin/sh\necho '{answer}'\necho careful >&2\n")
    if job_id is None:
        with pytest.raises(LaunchError, match="Slurm did not take the job: careful"):
            submit_script(tmp_path / "script", [], tmp_path)
    else:
        assert submit_script(tmp_path / "script", [], tmp_path) == job_id


def test_without_sbatch_a_submit_says_where_to_go(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match=r"not on PATH; use a login node .*--set run_on=local"):
        submit_script(tmp_path / "script", [], tmp_path)
    (tmp_path / "sbatch").touch()
    with pytest.raises(LaunchError, match=r"^sbatch: Permission denied$"):
        submit_script(tmp_path / "script", [], tmp_path)
