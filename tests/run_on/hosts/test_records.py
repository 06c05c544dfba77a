"""What the files and the record of a run say of several hosts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.factories import build_trial, load_job
from tests.launcher.values import KnownMeter, after, ended, report, started
from zeusrun.launcher.processes.command import Place, Torchrun, build_command
from zeusrun.launcher.processes.torchrun import ProcessExit
from zeusrun.launcher.rundir.failure import (
    lost_host,
    read_failure,
    read_traceback,
    torchrun_was_signalled,
)
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.supervision.outcome import build_outcome
from zeusrun.reasons import ReasonCode
from zeusrun.trial import HostShare, Outcome, TrialStatus, join_parts, rank_label

HOSTS = (HostShare("a", 2), HostShare("b", 1), HostShare("c", 4))


# The place of a torchrun


def test_alone_nothing_is_said_of_hosts():
    assert Place(2).flags("x") == [
        "--nnodes=1",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=localhost:0",
        "--rdzv-id=x",
    ]
    assert Place(2).env() == {}


def test_the_first_host_serves_the_rendezvous_and_the_others_do_not():
    places = [
        Place(1, number, 2, "10.0.0.9:29400", "eth0", f"10.0.0.{9 - number}") for number in (0, 1)
    ]
    first, second = (place.flags("x") for place in places)
    assert {"--nnodes=2", "--rdzv-endpoint=10.0.0.9:29400"} <= {*first} & {*second}
    assert first[-2:] == ["--rdzv-conf=is_host=1", "--local-addr=10.0.0.9"]
    assert second[-2:] == ["--rdzv-conf=is_host=0", "--local-addr=node0001.10.0.0.8"]
    assert places[1].env() == {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0"}


@pytest.mark.parametrize("own", ["10.0.0.9", "192.168.200.200", "fd00::9", "fe80::1%eth0"])
def test_torchrun_numbers_the_hosts_as_we_do(own):
    """It sorts them by their addresses as texts."""
    others = [f"10.0.0.{number % 7}" for number in range(1, 1200)]
    addresses = [
        Place(1, number, 1200, "x:1", "", address).flags("x")[-1].partition("=")[2]
        for number, address in enumerate([own, *others])
    ]
    assert addresses == sorted(addresses)


@pytest.fixture
def command(tmp_path):
    def build(place, world_size, environment=None, **env):
        spec = load_job(
            tmp_path, launch={"nproc_per_node": world_size}, env={"BATCH": "${batch_size}", **env}
        )
        return build_command(
            spec,
            build_trial(world_size=world_size),
            RunPaths(Path("/runs/job-1-1")),
            Torchrun(("torchrun",), "2", frozenset(), ("--role=trainer",)),
            environment or {},
            place=place,
        )

    return build


def test_the_command_of_a_host_has_its_ranks_and_its_interface(command):
    built = command(Place(2, 1, 2, "10.0.0.1:1", "eth0", "10.0.0.2"), 4)
    assert built.ranks is None  # none of them has the terminal
    assert "--nproc-per-node=2" in built.argv
    assert built.env["GLOO_SOCKET_IFNAME"] == "eth0"
    assert built.env["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in command(Place(1, 1, 2, "10.0.0.1:1", "eth0", "10.0.0.2"), 2).env


@pytest.mark.parametrize("number", [0, 1])
def test_more_options_of_torchrun_go_to_every_host(command, number):
    argv = command(Place(1, number, 2, "10.0.0.1:1", "eth0", "10.0.0.2"), 2).argv
    assert "--role=trainer" in argv[: argv.index("--")]


def test_the_job_may_name_another_interface(command):
    place = Place(1, 1, 2, "10.0.0.1:1", "eth0", "10.0.0.2")
    built = command(place, 2, NCCL_SOCKET_IFNAME="ib0")
    assert built.env["NCCL_SOCKET_IFNAME"] == "ib0"
    assert built.env["GLOO_SOCKET_IFNAME"] == "eth0"


# The failure of several hosts

PEER = {"type": "DistBackendError", "message": "Connection closed by peer [10.0.0.2]:1234"}
LOST = {
    "type": "RuntimeError",
    "message": "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:1",
}
RAISED = {"type": "ValueError", "message": "the data is broken"}
TABLE = """\
zeusrun.worker FAILED
Failures:
Root Cause (first observed failure):
[0]:
  rank      : {rank} (local_rank: 0)
  exitcode  : {code} (pid: 13)
"""


def leave(paths, number, rank, said, restart=0):
    name = f"error.{number}.json" if number else "error.json"
    record = {
        "rank": rank,
        "restart": restart,
        "kind": "exception",
        "traceback": f"of {rank}",
        **said,
    }
    (paths.run_dir / name).write_text(json.dumps(record))


def test_the_cause_is_that_of_the_host_that_did_not_only_lose_its_peer(paths):
    leave(paths, 0, 0, LOST)
    leave(paths, 1, 2, RAISED)
    found = read_failure(paths, 0)
    assert (found.rank, found.reason) == (2, "rank 2: ValueError: the data is broken")
    assert read_traceback(paths) == "of 2"


def test_where_all_have_lost_a_peer_the_kernel_may_have_killed_one_elsewhere(paths):
    leave(paths, 0, 0, LOST)
    paths.torchrun_log.write_text(TABLE.format(rank=0, code=1))
    (paths.logs / "torchrun.1.log").write_text(TABLE.format(rank=3, code=-9))
    found = read_failure(paths, 0, 1)
    assert (found.rank, found.code) == (3, ReasonCode.OUT_OF_MEMORY)


def test_without_records_the_log_of_any_host_tells(paths):
    (paths.logs / "torchrun.2.log").write_text(TABLE.format(rank=5, code=3))
    assert read_failure(paths, 0).rank == 5
    assert not torchrun_was_signalled(paths)
    (paths.logs / "torchrun.10.log").write_text("SignalException: Process 1 got signal: 15")
    assert torchrun_was_signalled(paths)


def test_errors_before_the_last_restart_are_not_the_cause_on_any_host(paths):
    leave(paths, 1, 2, RAISED, restart=0)
    leave(paths, 2, 3, {**RAISED, "message": "again"}, restart=1)
    assert read_failure(paths, 1).rank == 3


def test_garbage_of_one_host_does_not_hide_another(paths):
    (paths.run_dir / "error.1.json").write_bytes(b"\xff{")
    leave(paths, 2, 3, RAISED)
    assert read_failure(paths, 0).rank == 3


def test_a_lost_host_is_the_failure():
    assert lost_host(None) is None
    found = lost_host("host b is lost")
    assert (found.reason, found.code, found.rank) == ("host b is lost", ReasonCode.HOST_LOST, None)


# The record


def test_a_rank_is_named_with_its_host_if_there_are_several():
    names = [rank_label(HOSTS, rank) for rank in range(8)]
    assert names == [
        *("a rank0", "a rank1", "b rank2", "c rank3", "c rank4", "c rank5", "c rank6"),
        "rank7",
    ]
    assert rank_label((), 3) == "rank3"


REACHED = after(
    started(103.0), report(105.0, 1, 0.1), report(107.0, 2, 0.6), ended(110.0, 0), ended(110.0, 1)
)


def outcome(hosts, parts_j, progress=REACHED):
    class Meter(KnownMeter):
        asked = None

        def host_energies_j(self, since_s, until_s):
            Meter.asked = (since_s, until_s)
            return parts_j

    made = build_outcome(
        trial=build_trial(
            metric="accuracy",
            target=0.5,
            mode="max",
            max_epochs=5,
            host_count=len(hosts) or 1,
            hosts=hosts,
        ),
        progress=progress,
        exit_=ProcessExit(0, 110.0, ()),
        stop=None,
        failure=None,
        meter=Meter(),
        shared=False,
        hosts=hosts,
        finished_at="2025-06-01T12:00:10.000+00:00",
    )
    return made, Meter.asked


def test_each_host_has_its_part_of_the_energy_over_the_span():
    made, asked = outcome(HOSTS[:2], {"": 30.0, "b": 10.0})
    assert made.hosts == (HostShare("a", 2, 30.0), HostShare("b", 1, 10.0))
    assert asked == (103.0, 103.0 + made.time_s)


def test_of_a_host_that_was_not_metered_the_part_is_unknown():
    assert outcome(HOSTS[:2], {"": 30.0, "b": None})[0].hosts[1].energy_j is None
    assert outcome(HOSTS[:2], {"": 30.0})[0].hosts[1].energy_j is None
    assert outcome(HOSTS[:2], {"b": 10.0})[0].hosts == (HostShare("a", 2), HostShare("b", 1, 10.0))


def test_a_run_that_never_trained_has_hosts_without_energy():
    assert outcome(HOSTS[:2], {"": 1.0}, after())[0].hosts == HOSTS[:2]
    assert outcome((), {"": 1.0})[0].hosts == ()


def preempted(hosts, **changes):
    return build_trial(
        status=TrialStatus.PREEMPTED,
        hosts=hosts,
        time_s=5.0,
        energy_j=9.0,
        preemptions=1,
        **changes,
    )


def joined(before, last):
    made = Outcome(
        TrialStatus.REACHED, "done", "2025-06-01T12:00:10.000+00:00", time_s=4.0, hosts=last
    )
    return join_parts(preempted(before), made).hosts


def test_the_parts_of_a_preempted_run_are_added_by_host():
    first = (HostShare("a", 2, 3.0), HostShare("b", 1, 4.0))
    last = (HostShare("a", 2, 10.0), HostShare("b", 1, 20.0))
    assert joined(first, last) == (HostShare("a", 2, 13.0), HostShare("b", 1, 24.0))


def test_a_host_that_was_not_there_all_the_time_has_no_known_part():
    first = (HostShare("a", 2, 3.0), HostShare("b", 1, 4.0))
    last = (HostShare("a", 2, 10.0), HostShare("c", 1, 20.0))
    assert joined(first, last) == (HostShare("a", 2, 13.0), HostShare("c", 1))
    assert joined((HostShare("a", 1, 3.0),), last)[0] == HostShare("a", 2)
    assert joined((HostShare("a", 2, None),), last)[0] == HostShare("a", 2)


def test_the_hosts_of_a_trial_are_kept_and_read_again():
    trial = build_trial(hosts=HOSTS, host_count=3)
    done = trial.finish(Outcome(TrialStatus.FAILED, "x", "2025-06-01T12:00:10.000+00:00"))
    assert done.hosts == HOSTS
    shares = tuple(share._replace(energy_j=1.5) for share in HOSTS)
    done = trial.finish(
        Outcome(TrialStatus.FAILED, "x", "2025-06-01T12:00:10.000+00:00", hosts=shares)
    )
    again = type(trial).from_json(json.loads(json.dumps(done.to_json())))
    assert again == done
    assert all(isinstance(share, HostShare) for share in again.hosts)
    assert replace(again, hosts=()) != done
