"""What a submit needs of its machine before it starts anything."""

from __future__ import annotations

import os
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.factories import PREEMPTED, REACHED, build_trial, load_job
from zeusrun.bandit.registry import create_policy
from zeusrun.errors import DeviceError, ExitCode, LaunchError
from zeusrun.gpu import registry
from zeusrun.gpu.registry import resolve_world_size
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.launcher.context import Submission, _own_trials
from zeusrun.launcher.processes.command import Place, find_torchrun
from zeusrun.launcher.processes.torchrun import check_descriptors
from zeusrun.launcher.rundir.layout import RunPaths, create_run, write_record
from zeusrun.trial import EnergySource, Hardware, HostShare, TrialStatus


@pytest.fixture
def limit(monkeypatch):
    """Let this process open so many files."""

    def put(count):
        monkeypatch.setattr(
            "zeusrun.launcher.processes.torchrun.resource.getrlimit", lambda _which: (count, count)
        )

    return put


@pytest.mark.parametrize(("count", "ranks"), [(40, 2), (1024, 128), (resource.RLIM_INFINITY, 8)])
def test_enough_descriptors_are_enough(limit, count, ranks):
    limit(count)
    check_descriptors(ranks)


@pytest.mark.parametrize(("count", "ranks"), [(12, 1), (24, 2), (256, 64)])
def test_too_few_are_told_before_torchrun_hangs(limit, count, ranks):
    limit(count)
    with pytest.raises(LaunchError, match=f"only {count} files .* `ulimit -n`") as refused:
        check_descriptors(ranks)
    assert refused.value.exit_code == ExitCode.LAUNCH


@pytest.mark.parametrize(
    ("nproc_per_node", "gpus", "ranks"),
    [(3, 1, 3), ("cpu", 4, 8), ("gpu", 4, 4), ("auto", 4, 4), ("auto", 0, 8)],
)
def test_ranks_are_counted_by_torchruns_own_words(nproc_per_node, gpus, ranks):
    assert resolve_world_size(nproc_per_node, gpus, 8) == ranks


def test_gpus_asked_for_and_absent_are_an_error_that_says_what_to_do():
    with pytest.raises(DeviceError, match=r"'gpu'.*nvidia-smi.*'auto'"):
        resolve_world_size("gpu", 0, 8)


@pytest.mark.parametrize(
    ("nproc_per_node", "most", "asked", "found"),
    [
        (2, None, [2], (["gpu", "gpu"], 2)),
        (2, 3, [3], (["gpu", "gpu", "gpu"], 2)),  # as many ranks as there may be later
        (9, None, [9], (["gpu"] * 4, 9)),
        ("gpu", None, [None], (["gpu"] * 4, 4)),
        ("cpu", None, [], (["cpu"], 8)),
    ],
)
def test_the_devices_of_a_job_are_its_gpus_or_else_the_cpu(
    monkeypatch, nproc_per_node, most, asked, found
):
    counts = []
    monkeypatch.setattr(registry, "cpu_device", lambda _environment: "cpu")
    monkeypatch.setattr(os, "sched_getaffinity", {0: range(8), 1: range(3)}.get)
    monkeypatch.setattr(
        registry,
        "gpus_of_job",
        lambda _environment, n: counts.append(n) or ["gpu"] * min(n or 4, 4),
    )
    assert registry.job_devices(nproc_per_node, {}, most) == found
    assert counts == asked


def test_a_kind_of_device_that_zeusrun_does_not_know_is_that_of_a_plugin(monkeypatch):
    present = ["tpu", "tpu"]
    monkeypatch.setattr(registry, "create_plugin", lambda *_: list(present))
    assert registry.job_devices("tpu", {}) == (["tpu", "tpu"], 2)
    present.clear()
    with pytest.raises(DeviceError, match="'tpu', but no installed plugin finds such a device"):
        registry.job_devices("tpu", {})


@pytest.fixture
def submission(tmp_path):
    return Submission(
        spec=load_job(tmp_path),
        history=TinyDBHistory(tmp_path / "history"),
        policy=create_policy("auto"),
        devices=(),
        world_size=1,
        torchrun=find_torchrun(),
        home=tmp_path,
        environment={},
    )


def device(model="A100", limit_w=300.0, max_power_w=400.0, source=EnergySource.COUNTER):
    return SimpleNamespace(
        is_gpu=model is not None, model=model, max_power_w=max_power_w, energy_source=source,
        read=lambda: SimpleNamespace(power_limit_w=limit_w),
    )  # fmt: skip


A100, H100 = device(), device("H100", 500.0, 700.0)
CPU = device(None, None, 65.0, EnergySource.ESTIMATED)


@pytest.mark.parametrize(
    ("metered", "model", "watts", "measured"),
    [
        ((A100, A100), "A100", (800.0, 300.0), True),
        ((A100, H100), "A100 + H100", (1100.0, None), True),  # no common limit
        ((A100, device(max_power_w=None)), "A100", (None, 300.0), True),
        ((A100, device(source=EnergySource.ESTIMATED)), "A100", (800.0, 300.0), False),
        ((CPU,), None, (65.0, None), False),
        ((), None, (None, None), None),
    ],
)
def test_a_choice_sees_the_devices_together(submission, metered, model, watts, measured):
    found = replace(submission, devices=metered, world_size=4, host="here").measure()
    assert found.hardware == Hardware(4, model, len(metered) if model else 0, 1)
    assert (found.max_power_w, found.power_limit_w) == watts
    assert (found.energy_measured, found.host, found.hosts) == (measured, "here", ())
    assert (found.allocation, found.time_left_s, found.levers) == (None, None, ())


def test_a_choice_sees_the_limit_of_the_job_file_and_the_limits_to_choose_from(
    submission, tmp_path
):
    limits = SimpleNamespace(levers=("lever",))
    for power, limit_w, levers in (
        ({"mode": "optimize"}, 300.0, ("lever",)),
        ({"mode": "observe"}, 300.0, ()),
        ({"mode": "fixed", "watts": 250}, 250.0, ()),
    ):
        spec = load_job(tmp_path, power_limit=power)
        found = replace(submission, spec=spec, devices=(A100,), limits=limits).measure()
        assert (found.power_limit_w, found.levers) == (limit_w, levers)


def test_a_choice_sees_the_other_hosts_and_the_allocation(submission):
    nodes = [SimpleNamespace(name="b", ranks=(2, 3))]
    allocation = SimpleNamespace(name="slurm:7", time_left_s=lambda: 60.0)
    cluster = SimpleNamespace(nodes=nodes)
    many = replace(submission, host="a", world_size=4, cluster=cluster, allocation=allocation)
    found = many.measure()
    assert (found.allocation, found.time_left_s, found.hardware.host_count) == ("slurm:7", 60.0, 2)
    assert found.hosts == (HostShare("a", 2), HostShare("b", 2))
    assert many.own_ranks == 2
    assert replace(many, planned=found, cluster=None).measure() is found


def test_the_launcher_of_another_host_adds_its_own_environment(submission):
    given = replace(submission, environment={"A": "1"})
    to_run = build_trial(), RunPaths(submission.home / "job-1-1")
    assert "--nproc-per-node=1" in given.commands(*to_run)[0].argv
    cluster = SimpleNamespace(places=lambda: [Place(2, 0, 2), Place(2, 1, 2)])
    own, other = replace(given, cluster=cluster).commands(*to_run)
    start = len(given.torchrun.argv)
    assert own.argv[:start] == other.argv[:start] == given.torchrun.argv
    assert other.argv[start] == "--nnodes=2"
    assert (own.env["A"], "A" in other.env) == ("1", False)


def test_of_a_shared_history_a_machine_continues_what_it_has_files_of(submission, ran, monkeypatch):
    cut = replace(ran(4, PREEMPTED), host="b")
    write_record(RunPaths(Path(cut.run_dir)), cut)
    mine = [replace(ran(1), host=None), replace(ran(2), host="a"), cut]
    theirs = [replace(ran(3), host="b"), replace(build_trial(5).finish(PREEMPTED), host="a")]
    assert _own_trials(submission.history, submission.home, "a", theirs) == theirs
    monkeypatch.setattr(submission.history, "keeps_leases", lambda _job: True, raising=False)
    assert _own_trials(submission.history, submission.home, "a", [*mine, *theirs]) == mine


def test_runs_that_began_after_the_newest_known_one_are_those_that_the_history_lacks(
    submission, ran
):
    ran(3)
    trials = [ran(1), ran(2)]
    for number in (1, 2, 4, 12):
        create_run(submission.home, "job", f"job-{number}-1").torchrun_log.touch()
    create_run(submission.home, "job", "job-offline-1a2b3c4d").torchrun_log.touch()
    assert submission.read_moment([]).unrecorded[-1] == (1, "job-1-1")
    moment = submission.read_moment(trials)
    assert moment.unrecorded == ((12, "job-12-1"), (4, "job-4-1"))
    assert (moment.preempted, moment.has_files) == (None, False)


def test_a_preempted_trial_has_its_files_if_its_job_file_is_among_them(submission, ran):
    cut = ran(1, PREEMPTED)
    for has_files in (False, True):
        moment = submission.read_moment([cut])
        assert (moment.preempted, moment.has_files) == (cut, has_files)
        RunPaths(Path(cut.run_dir)).job_copy.touch()


@pytest.fixture
def ran(tmp_path):
    """Make a finished trial and its files; ``saved``: whether it has a checkpoint."""

    def make(number, outcome=REACHED, *, saved=False):
        paths = create_run(tmp_path, "job", f"job-{number}-1")
        if saved:
            (paths.checkpoints / "last.pt").touch()
        return build_trial(number, run_dir=str(paths.run_dir)).finish(outcome)

    return make


def resumes(submission, trials):
    return submission.read_moment(trials, limited=True).resumes


def test_a_script_resumes_if_one_of_its_newest_five_runs_has_saved_a_checkpoint(submission, ran):
    assert resumes(submission, []) is None
    trials = [ran(1, saved=True), *(ran(n) for n in range(2, 6))]
    assert resumes(submission, trials) is True
    assert resumes(submission, [*trials, ran(6)]) is False
    assert submission.read_moment(trials).resumes is None  # nothing is read without a limit


def test_a_run_whose_files_are_gone_or_that_ended_before_its_first_epoch_shows_nothing(
    submission, ran
):
    trials = [ran(1), ran(2, saved=True)]
    for trial in trials:
        shutil.rmtree(submission.home / "runs" / "job" / trial.trial / "checkpoints")
    assert resumes(submission, trials) is None
    early = replace(REACHED, status=TrialStatus.FAILED, epochs=None, curve=())
    assert resumes(submission, [ran(3, early)]) is None
    assert resumes(submission, [ran(4, replace(early, time_s=None))]) is None
    assert resumes(submission, [ran(3, early), ran(7)]) is False
    assert resumes(submission, [build_trial(5)]) is None  # it runs
    assert resumes(submission, [ran(8, PREEMPTED).resume("2026-01-02T00:00:00Z")]) is None
    assert resumes(submission, [build_trial(9).finish(REACHED)]) is None  # its files are elsewhere
    assert resumes(submission, [ran(6, replace(PREEMPTED, epochs=None, curve=()))]) is False
