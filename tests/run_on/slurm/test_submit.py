"""What the verbs do on a login node, over a stand-in for Slurm that runs nothing."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace

import pytest

from tests.factories import DONE, REACHED, load_job
from zeusrun.commands import compose, follow
from zeusrun.commands.submit import run_job
from zeusrun.errors import BusyError, HistoryError, LaunchError, UsageError
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.queue.admission import Request
from zeusrun.launcher.queue.tickets import HeldTicket, Tickets
from zeusrun.reasons import ReasonCode
from zeusrun.run_on.slurm import submit as batch
from zeusrun.run_on.slurm import submit as verbs
from zeusrun.run_on.slurm.client import SlurmJob, describe_job
from zeusrun.run_on.slurm.submit import find_files
from zeusrun.trial import Hardware, TrialStatus

A100 = Hardware(8, "NVIDIA A100", 8, 2)
IN_SLURM = {
    "world_size": 8,
    "gpu_model": "NVIDIA A100",
    "gpu_count": 8,
    "host_count": 2,
    "allocation": "slurm:3",
}
MEASURED = replace(DONE, energy_source=REACHED.energy_source, max_power_w=2400.0)


@pytest.fixture
def job(zeusrun, slurm):
    """Write a job file for two nodes of four ranks."""

    def write(launch=None, **changes):
        launch = {"nnodes": 2, "nproc_per_node": 4} if launch is None else launch
        section = {"python": "python3", **changes.pop("slurm", {})}
        return zeusrun.job(run_on={"slurm": section}, launch=launch, **changes)

    return write


@pytest.fixture
def submit(cli, job):
    """Submit such a job; return ``(exit code, stdout, stderr)``."""
    return lambda *options, **changes: cli("submit", *options, job(**changes))


@pytest.fixture
def hasty(monkeypatch):
    """Follow without pauses."""
    monkeypatch.setattr(follow, "_POLL_S", 0.01)
    for name in ("_ASK_S", "_WRITTEN_S"):
        monkeypatch.setattr(batch, name, 0.01)


@pytest.fixture
def inside(cli, job, zeusrun, monkeypatch):
    """Queue a submit, and return its files, in the environment of its batch step."""

    def enter(**changes):
        cli("submit", "--detach", job({"nproc_per_node": 4}, **changes))
        monkeypatch.setenv("SLURM_JOB_ID", "1")
        monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
        return find_files(zeusrun.home / "slurm", "slurm:1")

    return enter


@pytest.fixture
def then(zeusrun, slurm, monkeypatch, hasty):
    """Say what the batch step does once the job is queued; it gets the files of the submit."""

    def put(act):
        def submit(*arguments):
            job_id = verbs_submit(*arguments)
            monkeypatch.setattr(verbs, "read_jobs", after)
            return job_id

        def after(names):
            if (files := find_files(zeusrun.home / "slurm", names[0])) is not None:
                monkeypatch.setattr(verbs, "read_jobs", verbs_read)
                act(files, names[0].removeprefix("slurm:"))
            return verbs_read(names)

        verbs_submit, verbs_read = verbs.submit_script, verbs.read_jobs
        monkeypatch.setattr(verbs, "submit_script", submit)

    return put


class TestPlan:
    """The machine that a choice on a login node is for."""

    @pytest.fixture
    def plan(self, tmp_path, monkeypatch):
        def refuse(*_):
            raise AssertionError("the devices of the login node do not matter")

        monkeypatch.setattr(compose, "job_devices", refuse)

        def plan(launch, history, **changes):
            spec = load_job(tmp_path, run_on="slurm", launch=launch, **changes)
            return compose.compose(spec, place=(tmp_path, history)).measure()

        return plan

    @pytest.fixture
    def history(self, zeusrun, record):
        return TinyDBHistory(zeusrun.home / "history")

    @pytest.mark.parametrize(
        ("launch", "hardware"),
        [
            ({"nnodes": 2, "nproc_per_node": 4}, Hardware(8, None, 0, 2)),
            ({"nnodes": 2, "nproc_per_node": "gpu"}, Hardware(2, None, 0, 2)),
            ({"nproc_per_node": 4}, Hardware(4, None, 0, 1)),
        ],
    )
    def test_before_the_first_run_only_the_ranks_are_known(self, plan, history, launch, hardware):
        planned = plan(launch, history)
        assert planned.hardware == hardware
        assert (planned.energy_measured, planned.max_power_w, planned.host) == (None, None, None)

    def test_it_is_that_of_the_last_run_in_slurm(self, plan, history, record):
        record(1, MEASURED, **{**IN_SLURM, "gpu_model": "NVIDIA V100"})
        record(2, MEASURED, **IN_SLURM)
        for per_node in (4, "gpu"):
            planned = plan({"nnodes": 2, "nproc_per_node": per_node}, history)
            assert planned.hardware == A100
            assert (planned.energy_measured, planned.max_power_w) == (False, 2400.0)

    def test_a_run_that_goes_on_shows_the_machine(self, plan, history, record):
        record(1, None, **IN_SLURM)
        planned = plan({"nnodes": 2, "nproc_per_node": 4}, history)
        assert (planned.hardware, planned.energy_measured) == (A100, None)

    @pytest.mark.parametrize(
        "launch", [{"nnodes": 4, "nproc_per_node": 4}, {"nnodes": 2, "nproc_per_node": 2}]
    )
    def test_a_run_on_fewer_nodes_or_ranks_was_on_another_machine(
        self, plan, history, record, launch
    ):
        record(1, MEASURED, **IN_SLURM)
        ranks = launch["nnodes"] * launch["nproc_per_node"]
        assert plan(launch, history).hardware == Hardware(ranks, None, 0, launch["nnodes"])

    def test_a_try_on_this_machine_says_nothing_of_the_nodes(self, plan, history, record):
        record(1, MEASURED, **IN_SLURM)
        record(2, world_size=8, gpu_count=1, gpu_model="of the login node")
        record(3, world_size=1)
        assert plan({"nnodes": 2, "nproc_per_node": 4}, history).hardware == A100
        assert plan({"nproc_per_node": 1}, history).hardware == Hardware(1, None, 0, 1)


def test_explain_takes_the_runs_of_the_nodes_as_evidence(cli, record, job):
    code, out, _ = cli("explain", job())
    assert (code, "What it costs is not known yet" in out) == (0, True)
    record(1, MEASURED, **IN_SLURM)
    code, out, _ = cli("explain", job())
    assert code == 0
    assert "cheapest so far" in out
    other = cli("explain", job({"nnodes": 1, "nproc_per_node": 8}))[1]
    assert "hardware" in " ".join(other.split())


def test_a_login_node_needs_no_torch_to_explain(cli, job, monkeypatch):
    def missing():
        raise LaunchError("torch is not installed")

    monkeypatch.setattr(compose, "find_torchrun", missing)
    assert cli("explain", job())[0] == 0


def test_a_dry_run_shows_the_script_before_and_after_the_first_run(cli, record, job, slurm):
    code, out, _ = cli("submit", "--dry-run", job(slurm={"partition": "gpu"}))
    assert code == 0
    assert out.startswith("#!/bin/bash\n#SBATCH --job-name=job\n#SBATCH --nodes=2\n")
    assert "#SBATCH --partition=gpu\n" in out
    record(1, **IN_SLURM)
    assert cli("submit", "--dry-run", job(slurm={"partition": "gpu"}))[1] == out
    script = json.loads(cli("submit", "--dry-run", "--json", job())[1])["script"]
    assert script.startswith("#!/bin/bash\n")
    assert slurm.calls() == []


def test_a_simulation_takes_the_runs_of_the_nodes(cli, record, job):
    path = job()
    assert "has 0 runs" in cli("simulate", path)[2]
    for number, size in enumerate((16, 32, 64) * 2, 1):
        record(number, MEASURED, global_batch_size=size, **IN_SLURM)
    code, _, errors = cli("simulate", path, "--seeds", 1, "--recurrences", 3)
    assert (code, errors) == (0, "")


@pytest.mark.parametrize(
    "shape",
    [
        (
            "80",
            [
                "  1. job since WHEN: slurm:1 runs on n1",
                "  2. job since WHEN: slurm:2 is queued (Resources)",
                "  3. job since WHEN: slurm:3 is queued (Priority)",
                "  4. job since WHEN: slurm:4 is COMPLETING on n[1-2]",
            ],
        ),
        (
            "120",
            [
                "  1. job since WHEN: slurm:1 runs on n1",
                "  2. job since WHEN: slurm:2 is queued (Resources)",
                "  3. job since WHEN: slurm:3 is queued (Priority)",
                "  4. job since WHEN: slurm:4 is COMPLETING on n[1-2]",
            ],
        ),
    ],
)
def test_status_says_where_each_queued_submit_is(cli, job, slurm, monkeypatch, shape):
    width, lines = shape
    for _ in range(4):
        assert cli("submit", "--detach", job())[0] == 0
    slurm.put("2", "PENDING", reason="Resources", start=86400, nodes="")
    slurm.put("3", "PENDING", reason="Priority", start="N/A", nodes="")
    slurm.put("4", "COMPLETING", nodes="n[1-2]")
    asked = len(slurm.calls())
    monkeypatch.setenv("COLUMNS", width)
    code, out, _ = cli("status")
    assert code == 0
    shown = re.sub(r"since \d\d-\d\d \d\d:\d\d", "since WHEN", out)
    assert [line.rstrip() for line in shown.splitlines()] == lines
    assert len(slurm.calls()) - asked <= 2
    slurm.fail("squeue")
    assert cli("status")[1].count(": Slurm does not respond") == 4
    queue = json.loads(cli("status", "--json")[1])
    assert [each["allocation"] for each in queue] == [f"slurm:{n}" for n in range(1, 5)]
    assert {each["state"] for each in queue} == {"queued"}


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, "slurm:7: Slurm does not respond"),
        (SlurmJob("PENDING"), "slurm:7 is queued"),
        (SlurmJob("PENDING", "Priority"), "slurm:7 is queued (Priority)"),
        (SlurmJob("RUNNING", nodes="n[1-4]"), "slurm:7 runs on n[1-4]"),
        (SlurmJob("RUNNING"), "slurm:7 runs"),
        (SlurmJob("SUSPENDED", nodes="n1"), "slurm:7 is SUSPENDED on n1"),
        (SlurmJob("GONE"), "slurm:7 is not known to Slurm"),
    ],
)
def test_a_job_is_described_in_a_sentence(found, text):
    assert describe_job("slurm:7", found) == text


def test_a_detached_submit_has_a_ticket_and_files(cli, job, slurm, zeusrun):
    code, out, errors = cli("submit", "--detach", job())
    said = "queued as slurm:1; `zeusrun logs -f slurm:1` follows it\n"
    assert (code, out, errors) == (0, said, "")
    (ticket,) = Tickets(zeusrun.home).present()
    assert (ticket.allocation, ticket.state, ticket.job) == ("slurm:1", "queued", "job")
    files = find_files(zeusrun.home / "slurm", "slurm:1")
    assert files.read_request().ticket == ticket.number
    assert (files.folder / "script.sh").read_text() == slurm.calls("sbatch", key="script")[0]
    assert cli("logs", "slurm:1")[:2] == (0, "")
    assert json.loads(cli("submit", "--detach", "--json", job())[1]) == {"queued": "slurm:2"}


def test_a_refused_submit_leaves_no_ticket_and_no_files(cli, job, zeusrun):
    code, _, errors = cli("submit", "--detach", job(slurm={"partition": "nope"}))
    assert (code, "invalid partition specified: nope; Batch job" in errors) == (5, True)
    assert Tickets(zeusrun.home).present() == []
    assert list((zeusrun.home / "slurm").iterdir()) == []


@pytest.mark.parametrize(
    "case",
    [
        ("allow", "PENDING", 0, "queued"),
        ("queue", "PENDING", 0, "waiting"),
        ("forbid", "PENDING", 75, None),
        ("forbid", "COMPLETED", 0, "queued"),
        ("queue", "COMPLETED", 0, "queued"),
        ("replace", "PENDING", 0, "waiting"),
    ],
)
def test_a_queued_submit_counts_as_running(submit, slurm, zeusrun, case):
    overlap, before, code, state = case
    submit("--detach")
    slurm.put("1", before)
    assert submit("--detach", "--overlap", overlap)[0] == code
    found = {each.allocation: each.state for each in Tickets(zeusrun.home).present()}
    assert found.get("slurm:2") == state
    waits = [each for each in slurm.calls("sbatch")[-1] if each.startswith("--dependency")]
    assert waits == (["--dependency=afterany:1"] if state == "waiting" else [])
    cancelled = [each[-1] for each in slurm.calls("scancel")]
    assert cancelled == (["1"] if overlap == "replace" else [])


def test_a_follower_relays_what_is_printed_and_ends_as_the_batch_step_did(cli, job, then):
    def act(files, _):
        files.output.write_bytes(b"one \x1b[31mred\x1b[0m\nlast line without an end")
        files.write("result.json", b'{"exit_code": 4, "trials": []}')

    then(act)
    code, out, errors = cli("submit", job())
    assert (code, errors) == (4, "")
    assert out == "· slurm:1 runs on n1\none red\nlast line without an end\n"


def test_with_json_the_result_is_all_that_is_on_stdout(cli, job, then):
    def act(files, _):
        files.output.write_bytes(b"one\n")
        files.write("result.json", b'{"exit_code": 0, "trials": [7]}')

    then(act)
    code, out, errors = cli("submit", "--json", job())
    assert (code, json.loads(out)) == (0, {"exit_code": 0, "trials": [7]})
    assert "one\n" in errors


@pytest.mark.parametrize(
    "case",
    [
        # how the job ended, what became of its trial, and what the follower says
        ({"state": "FAILED"}, None, 5, "slurm:1 ended as FAILED before it began to train"),
        ({"state": "CANCELLED"}, None, 143, "slurm:1 ended as CANCELLED"),
        ({"forgotten": True}, None, 5, "slurm:1 ended as GONE before it began to train"),
        ({"state": "CANCELLED"}, "dead", 143, "job-1-1 is recorded as CANCELLED: slurm:1 ended"),
        ({"state": "NODE_FAIL"}, "dead", 3, "job-1-1 is recorded as LOST: slurm:1 ended as NODE"),
        ({"state": "PREEMPTED"}, "dead", 75, "as PREEMPTED: slurm:1 ended as PREEMPTED"),
        # recorded by its batch step, which could not write the result, or by another submit
        ({"state": "COMPLETED"}, DONE, 0, "job-1-1 is recorded as REACHED: accuracy"),
        ({"state": "COMPLETED"}, replace(DONE, status=TrialStatus.MISSED), 4, "as MISSED"),
        ({"state": "NODE_FAIL"}, replace(DONE, status=TrialStatus.LOST), 3, "as LOST"),
        (
            {"state": "FAILED"},
            replace(DONE, status=TrialStatus.STOPPED, reason_code=ReasonCode.TIMEOUT),
            *(124, "as STOPPED"),
        ),
        ({"state": "FAILED"}, replace(DONE, status=TrialStatus.PREEMPTED), 75, "as PREEMPTED"),
        ({"state": "CANCELLED"}, replace(DONE, status=TrialStatus.CANCELLED), 143, "as CANC"),
    ],
)
def test_a_job_that_ended_without_a_result_is_told(submit, slurm, then, record, case):
    ended, outcome, code, words = case

    def act(_, job_id):
        slurm.put(job_id, **ended)
        if outcome is not None:
            record(1, None if outcome == "dead" else outcome, allocation=f"slurm:{job_id}")

    then(act)
    found, _, errors = submit()
    assert found == code
    assert any(re.search(words, line) for line in errors.splitlines())


@pytest.mark.parametrize(
    "case",
    [
        ([signal.SIGTERM], 75, []),
        ([signal.SIGHUP], 129, []),
        ([signal.SIGINT], 130, [["--signal=INT", "--batch", "1"]]),
        ([signal.SIGINT, signal.SIGINT], 130, [["1"]]),
    ],
)
def test_a_signal_to_a_follower_stops_its_job_if_it_is_ctrl_c(
    submit, slurm, then, monkeypatch, case
):
    numbers, code, stops = case

    def act(*_):
        for number in numbers:
            signal.raise_signal(number)

    real = verbs.SlurmSubmitter.stop_job

    def stop(submitter, name, interrupts):
        real(submitter, name, interrupts)
        slurm.put(name.removeprefix("slurm:"), "CANCELLED", nodes="")

    monkeypatch.setattr(verbs.SlurmSubmitter, "stop_job", stop)
    then(act)
    found, _, errors = submit()
    assert found == code
    assert [each[1:] for each in slurm.calls("scancel")] == stops
    assert ("continues without this process" in errors) is (not stops)


def test_cancel_takes_a_queued_submit_by_its_job_and_by_its_name(cli, job, slurm, zeusrun):
    for _ in range(2):
        cli("submit", "--detach", job())
        slurm.put("1", "PENDING")
    code, _, errors = cli("cancel", "job")
    assert code == 2
    assert "several runs of job are going on: slurm:1, slurm:2; name the one to stop" in errors
    assert cli("cancel", "slurm:2")[:2] == (0, "slurm:2 is cancelled\n")
    assert json.loads(cli("cancel", "--json", "job")[1]) == {"cancelled": "slurm:1"}
    assert Tickets(zeusrun.home).present() == []
    assert cli("status")[1].startswith("nothing runs now")


def test_a_batch_step_outside_of_slurm_says_what_it_is_for(cli, job, zeusrun, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    cli("submit", "--detach", job())
    name = find_files(zeusrun.home / "slurm", "slurm:1").folder.name
    code, _, errors = cli("inside", "slurm", name)
    assert (code, "for the batch step that runs slurm:1" in errors) == (2, True)
    assert cli("inside", "slurm", "0" * 12)[0] == 2


@pytest.mark.parametrize("case", [(0, True), (1, False)])
def test_a_deadline_is_for_the_first_start(cli, inside, zeusrun, monkeypatch, case):
    restarts, skipped = case
    files = inside()
    files.write_request(replace(files.read_request(), until=1.0))
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
    begun = []

    def run(*_, allocation, ticket):
        begun.append((allocation, ticket))
        return {"trials": [{"status": "REACHED"}], "exit_code": 0}

    monkeypatch.setattr(batch, "run_recurrence", run)
    code, _, errors = cli("inside", "slurm", files.folder.name)
    assert (code, bool(begun)) == ((75, False) if skipped else (0, True))
    assert ("its deadline has passed" in errors) is skipped
    assert files.read_result()["exit_code"] == code
    assert Tickets(zeusrun.home).present() == []


@pytest.mark.parametrize(
    "case",
    [
        ("PREEMPTED", True, False, True),
        ("PREEMPTED", False, False, False),
        ("PREEMPTED", True, True, False),
        ("CANCELLED", True, False, False),
        ("STOPPED", True, False, False),
    ],
)
def test_only_a_preempted_run_is_queued_again(cli, inside, slurm, monkeypatch, case):
    status, requeue, fails, again = case
    files = inside(slurm={"requeue": requeue})

    def run(*_, **__):
        return {"trials": [{"status": status}], "exit_code": 75}

    monkeypatch.setattr(batch, "run_recurrence", run)
    if fails:
        slurm.fail("scontrol", "Requested operation is presently disabled")
    code, _, errors = cli("inside", "slurm", files.folder.name)
    assert code == 75
    assert (files.read_result() is None) is again
    assert [each.allocation for each in Tickets(files.folder.parents[1]).present()] == [
        "slurm:1"
    ] * again
    assert len(slurm.calls("scontrol")) == (requeue and status == "PREEMPTED")
    assert ("; the next submit continues the run" in errors) is fails


@pytest.mark.parametrize(
    "case",
    [
        # how the job is, what ended its wait, whether it can be queued again, and whether it is
        ({"preempt": 0}, signal.SIGTERM, True, True),
        ({"preempt": 0}, signal.SIGTERM, False, False),
        ({"state": "COMPLETING"}, signal.SIGTERM, True, False),  # cancelled
        ({}, signal.SIGTERM, True, False),  # somebody has sent a signal
        ({"preempt": 0}, None, True, False),  # another submit is in the way
    ],
)
def test_a_job_that_is_preempted_before_a_run_begins_is_queued_again(
    cli, inside, slurm, monkeypatch, case
):
    job, number, can, again = case
    files = inside()
    slurm.put("1", **job)

    def run(*_, **__):
        if number is not None:
            signal.raise_signal(number)
        raise BusyError("job: ended before it began")

    monkeypatch.setattr(batch, "run_recurrence", run)
    if not can:
        slurm.fail("scontrol", "Requested operation is presently disabled")
    code, _, errors = cli("inside", "slurm", files.folder.name)
    assert (code, errors.count("ended before it began")) == (75, 1)
    assert files.read_result() == (None if again else {"exit_code": 75})
    tickets = Tickets(files.folder.parents[1]).present()
    assert len(tickets) == (again and job.get("state") != "COMPLETING")


def test_a_job_file_that_wants_other_nodes_than_its_job_has_is_refused(cli, inside, zeusrun, job):
    files = inside()
    job({"nnodes": 2, "nproc_per_node": 4})  # in the place of the one that was queued
    code, _, errors = cli("inside", "slurm", files.folder.name)
    assert (code, "'launch.nnodes' is 2 now, but slurm:1 has 1" in errors) == (2, True)
    assert files.read_result() == {"exit_code": 2}


def test_a_job_whose_ticket_cannot_be_written_is_cancelled(submit, slurm, zeusrun, monkeypatch):
    write = HeldTicket.write

    def fail(held, **changes):
        if changes:
            raise HistoryError("no space left")
        write(held)

    monkeypatch.setattr(HeldTicket, "write", fail)
    assert submit("--detach")[0] == 6
    assert slurm.calls("scancel") == [["scancel", "1"]]
    assert list((zeusrun.home / "slurm").iterdir()) == []


@pytest.mark.parametrize("option", ["--detach", "--dry-run"])
def test_a_batch_size_that_is_no_candidate_is_refused_at_once(submit, zeusrun, option):
    code, _, errors = submit(option, "--batch-size", "77")
    assert (code, "--batch-size 77: not among the candidates" in errors) == (2, True)
    assert Tickets(zeusrun.home).present() == []


def test_nor_does_a_submit_like_a_past_run_wait_for_nodes_with_a_batch_size_that_is_no_candidate(
    job, slurm
):
    with pytest.raises(UsageError, match="77: not among the candidates"):
        run_job(load_spec(job()), Request(batch_size=77, why="as in job-1-1, by --like"))
    assert slurm.calls("sbatch") == []


def test_logs_of_a_job_say_where_it_is_and_end_if_slurm_does_not_respond(cli, submit, slurm):
    submit("--detach")
    assert cli("logs", "slurm:1")[2] == "zeusrun: slurm:1 runs on n1\n"
    slurm.fail("squeue")
    code, out, errors = cli("logs", "-f", "slurm:1")
    assert (code, out, errors) == (0, "", "zeusrun: slurm:1: Slurm does not respond\n")


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
@pytest.mark.parametrize("name", ["job-1-1", "job", "slurm:7"])
def test_cancel_ends_a_run_whose_batch_step_is_gone_with_its_job(cli, record, slurm, state, name):
    """Its node died; Slurm will start it again."""
    slurm.put("7", state)
    record(1, None, allocation="slurm:7")
    assert cli("status")[1].count("job-1-1") == 1
    assert "DEAD" not in cli("status")[1]
    said = "job-1-1 is CANCELLED: slurm:7 ended as CANCELLED\n"
    assert cli("cancel", name)[:2] == (0, said)
    assert cli("cancel", name)[1] == said.replace("is CANCELLED", "had already ended")
    assert len(slurm.calls("scancel")) == 1


def test_cancel_of_a_preempted_run_ends_its_job_too(cli, record, slurm):
    slurm.put("7", "PENDING", restarts=1)
    record(1, replace(DONE, status=TrialStatus.PREEMPTED), allocation="slurm:7")
    code, out, _ = cli("cancel", "job-1-1")
    assert (code, out.startswith("job-1-1 is CANCELLED")) == (0, True)
    assert [each[1:] for each in slurm.calls("scancel")] == [["7"]]
