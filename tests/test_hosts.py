"""Trainings on two hosts, with the real torchrun and ssh: one decision, one record, one end."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.factories import CHILDREN
from tests.pairs import ENDLESS, open_pair
from tests.runs import only_trial

pytestmark = pytest.mark.torchrun
SECRET = "hf_Zm9vYmFyYmF6"
ALONE = """
import os, signal, sys, time, zeusrun
run = zeusrun.current()
if run.rank == 1:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1:]:
    import ctypes
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
for epoch in run.epochs(default=10**6):
    time.sleep(0.1)
"""


@pytest.fixture
def pair(zeusrun):
    """Two hosts that share all files."""
    with open_pair(zeusrun) as pair:
        yield pair


@pytest.fixture
def apart(zeusrun):
    """Two hosts each with a ``ZEUSRUN_HOME`` on a disk of its own."""
    with open_pair(zeusrun, shared_files=False) as pair:
        yield pair


def check_the_record(pair, trial, seen):
    """Check that a run of both hosts is one record, and that all of it is on ``a``."""
    run_dir = Path(trial["run_dir"])
    assert (trial["status"], trial["world_size"], trial["host_count"]) == ("REACHED", 2, 2)
    assert [share[0] for share in trial["hosts"]] == ["a", "b"]
    joules = [share[2] for share in trial["hosts"]]
    assert all(joules)
    assert sum(joules) == pytest.approx(trial["energy_j"], rel=0.05)
    for event in ("started", "ended"):
        assert pair.ranks_with(event, trial["trial"]) == {0, 1}
    for rank, host in enumerate("ab"):
        assert "epoch 1" in (run_dir / "logs" / f"rank{rank}.log").read_text()
        assert f"[{host} rank{rank}] epoch 1" in seen
    pair.check_that_b_is_empty()


def test_two_hosts_reach_the_target_and_are_one_record(pair):
    job = pair.job("agrees.py", args=["target", "0.6"])  # so that the energy of both is read
    code, result, seen = pair.submit(job)
    assert code == 0, seen
    check_the_record(pair, only_trial(result), seen)
    assert "its own disk" not in seen


@pytest.mark.long
def test_without_shared_files_the_record_is_the_same(apart):
    code, result, seen = apart.submit(apart.job(args=["--epoch-s", "0.6"]))
    assert code == 0, seen
    trial = only_trial(result)
    check_the_record(apart, trial, seen)
    assert not apart.b.path(trial["run_dir"]).exists()


@pytest.mark.long
def test_without_shared_files_the_run_says_where_the_checkpoints_of_each_host_are(apart):
    child = apart.start_and_wait(
        apart.job("saves_with_loaders.py", objective=ENDLESS, launch={"grace_period_s": 60})
    )
    child.terminate()
    code, trial, seen = apart.end(child)
    assert (code, trial["status"]) == (75, "PREEMPTED"), seen
    folder = Path(trial["run_dir"]) / "checkpoints"
    assert f"host b: its checkpoints are on its own disk, in {folder}" in " ".join(seen.split())
    assert [path.name for path in folder.iterdir()] == ["rank0.json"]
    assert [path.name for path in apart.b.path(folder).iterdir()] == ["rank1.json"]
    apart.check_that_b_is_empty()


@pytest.mark.long
def test_a_run_does_not_continue_where_a_host_lacks_the_checkpoint(apart):
    job = apart.job("checkpoints.py", objective=ENDLESS)  # rank 0 alone saves
    child = apart.start_and_wait(job)
    child.terminate()
    code, trial, seen = apart.end(child)
    assert (code, trial["status"]) == (75, "PREEMPTED"), seen
    done = apart.run("submit", job)
    assert done.returncode == 5, done.stdout + done.stderr
    told = " ".join(done.stderr.split())
    assert f"host b: the run continues from a checkpoint in {trial['run_dir']}/checkpoints" in told
    (after,) = apart.zeusrun.history()
    assert (after["status"], after["preemptions"]) == ("PREEMPTED", 1)
    apart.check_that_b_is_empty()


@pytest.mark.long
def test_a_script_that_a_host_lacks_is_refused_before_anything_starts(apart):
    script = apart.zeusrun.home / "train.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text((CHILDREN / "well.py").read_text())
    done = apart.run("submit", apart.job(str(script)))
    assert done.returncode == 5, done.stdout + done.stderr
    assert f"host b: there is no {script}" in " ".join(done.stderr.split())
    assert apart.events() == []
    assert not apart.b.path(apart.zeusrun.home / "runs").exists()
    apart.check_that_b_is_empty()


@pytest.mark.long
def test_a_preempted_training_ends_after_its_epoch_and_both_hosts_save(pair):
    """With data loader workers, which no signal may reach."""
    launch = {"grace_period_s": 60, "max_restarts": 1}  # a restart would save as life 1
    child = pair.start_and_wait(
        pair.job("saves_with_loaders.py", objective=ENDLESS, launch=launch, stall={"action": "off"})
    )
    child.terminate()
    code, trial, seen = pair.end(child)
    assert (code, trial["status"]) == (75, "PREEMPTED"), seen
    run_dir = Path(trial["run_dir"])
    saved = [json.loads(path.read_text()) for path in sorted((run_dir / "checkpoints").iterdir())]
    assert saved == [{"epochs": trial["epochs"], "life": 0, "steps": 10 * trial["epochs"]}] * 2
    logs = "".join(path.read_text() for path in (run_dir / "logs").glob("rank?.log"))
    assert "DataLoader" not in logs
    pair.check_that_b_is_empty()


@pytest.mark.long
def test_the_next_submit_continues_a_preempted_training_to_the_target(pair):
    enough = pair.zeusrun.folder / "enough"
    job = pair.job("checkpoints.py", args=["--reaches-with", str(enough)], objective=ENDLESS)
    child = pair.start_and_wait(job)
    child.terminate()
    code, first, seen = pair.end(child)
    assert (code, first["status"]) == (75, "PREEMPTED"), seen
    enough.touch()
    code, result, seen = pair.submit(job)
    trial = only_trial(result)
    assert (code, trial["status"], trial["trial"]) == (0, "REACHED", first["trial"]), seen
    assert trial["epochs"] == first["epochs"] + 1
    assert [share[0] for share in trial["hosts"]] == ["a", "b"]
    for rank in range(2):
        log = (Path(trial["run_dir"]) / "logs" / f"rank{rank}.log").read_text()
        assert f"begins after epoch {first['epochs']}" in log
    assert sum(share[2] for share in trial["hosts"]) == pytest.approx(trial["energy_j"], rel=0.05)
    pair.check_that_b_is_empty()


@pytest.mark.long  # two hosts, once more
def test_a_killed_node_launcher_ends_the_run_and_leaves_nothing_there(pair):
    """Ranks that have saved are not waited for: their torchrun waits for that of ``b``."""
    child = pair.start_and_wait(pair.job(None, launch={"grace_period_s": 600}))
    os.kill(pair.launcher_of_b(), signal.SIGKILL)
    code, trial, seen = pair.end(child)
    assert (code, trial["status"], trial["reason_code"]) == (3, "FAILED", "host_lost"), seen
    assert trial["reason"].startswith("host b is lost: ")
    pair.wait_until_b_is_empty()


@pytest.mark.long
@pytest.mark.parametrize("how", ["stopped", "cut"])
def test_a_silent_host_ends_the_run_within_the_heartbeat(pair, how):
    child = pair.start_and_wait(pair.job(None, run_on={"heartbeat_s": 2}))
    launcher = pair.launcher_of_b()
    if how == "stopped":
        os.kill(launcher, signal.SIGSTOP)
    else:
        pair.hosts.cut()
    code, trial, seen = pair.end(child)
    assert (code, trial["status"], trial["reason_code"]) == (3, "FAILED", "host_lost"), seen
    assert re.match(r"host b is lost: it has not answered for \d s", trial["reason"])
    if how == "stopped":
        os.kill(launcher, signal.SIGCONT)
    pair.wait_until_b_is_empty()


@pytest.mark.long
def test_a_head_that_was_silent_and_lives_again_says_that_the_host_left(pair):
    child = pair.start_and_wait(pair.job(None, run_on={"heartbeat_s": 2}))
    os.kill(child.pid, signal.SIGSTOP)
    pair.wait_until_b_is_empty()
    os.kill(child.pid, signal.SIGCONT)
    code, trial, seen = pair.end(child)
    assert (code, trial["status"], trial["reason_code"]) == (3, "FAILED", "host_lost"), seen
    left = r"host b left because it heard nothing from this host for \d s \(run_on.heartbeat_s\)"
    assert re.match(left, trial["reason"])


@pytest.mark.parametrize(
    ("nic", "told"),
    [
        pytest.param(
            *("bogus0", "host a has no interface bogus0; it has lo, eth0, eth9"),
            marks=pytest.mark.long,  # the other host is the harder case
        ),
        ("eth9", "host b has no interface eth9; it has lo, eth0"),
    ],
)
def test_a_wrong_interface_is_refused_before_anything_starts(pair, nic, told):
    pair.a.do(
        "ip link add eth9 type veth peer name eth8; ip addr add 10.77.9.1/24 dev eth9; ip link set eth9 up"
    )
    done = pair.run("submit", pair.job(run_on={"nic": nic}))
    assert done.returncode == 5, done.stdout + done.stderr
    assert told in " ".join(done.stderr.split())
    assert pair.zeusrun.history() == []
    pair.check_that_b_is_empty()


@pytest.mark.long
def test_an_error_of_a_rank_on_another_host_is_the_reason(pair):
    code, result, seen = pair.submit(pair.job("raises_on_rank_1.py", attempts=1))
    trial = only_trial(result)
    assert (code, trial["status"], trial["reason_code"]) == (3, "FAILED", "crashed"), seen
    assert "ValueError: the data of rank 1 is broken" in trial["reason"]
    assert "rank 1" in trial["reason"].replace("of rank 1", "")
    pair.check_that_b_is_empty()


@pytest.mark.long
def test_so_is_the_signal_that_killed_it(pair):
    code, result, seen = pair.submit(pair.job("dies_on_rank_1.py", attempts=1))
    trial = only_trial(result)
    assert (code, trial["status"]) == (3, "FAILED"), seen
    assert "SIGKILL" in trial["reason"]
    assert "rank 1" in trial["reason"]
    pair.check_that_b_is_empty()


@pytest.mark.long
@pytest.mark.parametrize("hangs", [False, True])
def test_a_failure_is_the_reason_though_zeusrun_ends_the_other_rank(pair, hangs):
    (pair.zeusrun.folder / "alone.py").write_text(ALONE)
    launch = {"grace_period_s": 60 if hangs else 600}
    job = pair.job("alone.py", args=["--hangs"] if hangs else [], attempts=1, launch=launch)
    code, result, seen = pair.submit(job)
    trial = only_trial(result)
    assert (code, trial["status"], trial["reason_code"]) == (3, "FAILED", "crashed"), seen
    assert trial["reason"].startswith("host b: rank 1 was ended by SIGKILL")
    pair.check_that_b_is_empty()


@pytest.mark.long
def test_a_rank_on_another_host_may_fail_as_often_as_torchrun_restarts(pair):
    job = pair.job("fails_once_on_rank_1.py", attempts=1, launch={"max_restarts": 1})
    code, result, seen = pair.submit(job)
    trial = only_trial(result)
    assert (code, trial["status"]) == (0, "REACHED"), seen
    assert "the ranks were restarted once" in trial["warnings"]
    pair.check_that_b_is_empty()


@pytest.mark.long
def test_a_stall_shows_the_stacks_of_both_hosts(pair):
    objective = {"target": 1.0, "max_epochs": 5}
    job = pair.job("hangs_on_rank_1.py", objective=objective, stall={"after_s": 2.0})
    code, result, seen = pair.submit(job)
    trial = only_trial(result)
    assert (code, trial["status"]) == (0, "REACHED"), seen
    (told,) = [text for text in trial["warnings"] if "the training has stalled" in text]
    assert "rank 1 is in wait_for_the_stacks, hangs_on_rank_1.py:" in told
    text = (Path(trial["run_dir"]) / "logs" / "stacks.txt").read_text()
    assert text.index("\nrank 0:\n") < text.index("in backward\n") < text.index("\nrank 1:\n")
    assert text.index("\nrank 1:\n") < text.index("in wait_for_the_stacks\n")
    pair.check_that_b_is_empty()


@pytest.mark.long
def test_a_host_joins_by_hand_with_the_right_token_and_its_own_secrets(pair):
    """A secret is not sent over a connection that is not encrypted."""
    token = {"ZEUSRUN_JOIN_TOKEN": "the right one"}
    (pair.zeusrun.folder / "enough").touch()
    job = pair.job(None, run_on={"fan_out": "join"}, env={"HF_TOKEN": SECRET})
    child = pair.start("submit", job, HF_TOKEN=SECRET, **token)
    endpoint = pair.wait_until_seen(child, r"zeusrun join (10\.77\.0\.1:\d+)")[1]
    done = pair.run("join", endpoint, on="b", ZEUSRUN_JOIN_TOKEN="another")
    assert done.returncode == 5
    assert "refused this host: the token is wrong" in " ".join(done.stderr.split())
    pair.wait_until_seen(child, r"10\.77\.0\.2 did not join: its token is wrong")
    joined = pair.start("join", endpoint, on="b", HF_TOKEN="another secret", **token)
    code, trial, seen = pair.end(child)
    assert (code, trial["status"]) == (0, "REACHED"), seen
    assert joined.wait(300) == 0
    logs = Path(trial["run_dir"]) / "logs"
    assert f"secret of {len(SECRET)}" in (logs / "rank0.log").read_text()
    assert f"secret of {len('another secret')}" in (logs / "rank1.log").read_text()
    pair.check_that_b_is_empty()


@pytest.mark.long
def test_a_host_that_joins_without_a_secret_is_refused(pair):
    token = {"ZEUSRUN_JOIN_TOKEN": "the right one"}
    job = pair.job(None, run_on={"fan_out": "join"}, env={"HF_TOKEN": SECRET})
    child = pair.start("submit", job, HF_TOKEN=SECRET, **token)
    endpoint = pair.wait_until_seen(child, r"zeusrun join (10\.77\.0\.1:\d+)")[1]
    joined = pair.start("join", endpoint, on="b", **token)
    assert child.wait(300) == 5, pair.seen(child)
    assert "host b: HF_TOKEN is not set" in " ".join(pair.seen(child).split())
    joined.wait(300)
    pair.check_that_b_is_empty()


@pytest.mark.long
def test_ctrl_c_ends_both_hosts_and_reaches_no_ssh(pair):
    child = pair.start_and_wait(pair.job(None))
    os.killpg(child.pid, signal.SIGINT)
    code, trial, seen = pair.end(child)
    assert (code, trial["status"]) == (130, "CANCELLED"), seen
    assert "lost" not in seen
    assert pair.ranks_with("ended") == {0, 1}
    pair.check_that_b_is_empty()


@pytest.mark.long
def test_a_killed_head_leaves_no_process_and_the_next_submit_records_it(pair):
    job = pair.job(None)
    child = pair.start_and_wait(job)
    child.kill()
    child.wait(300)
    pair.wait_until_b_is_empty()
    (pair.zeusrun.folder / "enough").touch()
    code, result, seen = pair.submit(job)
    assert (code, only_trial(result)["status"]) == (0, "REACHED"), seen
    statuses = {trial["trial"]: trial["status"] for trial in pair.zeusrun.history()}
    assert statuses == {"job-1-1": "LOST", "job-2-1": "REACHED"}
    pair.wait_until_b_is_empty()
    kept = pair.zeusrun.run_dir() / "nodes" / "1" / "logs" / "rank1.log"  # nobody got all of it
    assert kept.exists()
    assert not (pair.zeusrun.run_dir("job-2-1") / "nodes").exists()


@pytest.mark.long
def test_a_secret_is_in_no_argument_list_and_in_no_file_of_another_host(apart):
    found, over = set(), threading.Event()

    def look():
        while not over.wait(0.02):
            for pid in (*apart.a.pids(), *apart.b.pids()):
                with suppress(OSError):
                    words = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if SECRET.encode() in words:
                        found.add(words)

    looks = threading.Thread(target=look)
    looks.start()
    try:
        env = {"HF_TOKEN": SECRET}
        child = apart.start_and_wait(apart.job(None, env=env), HF_TOKEN=SECRET)
        files = [path for path in apart.b.path(apart.zeusrun.home).rglob("*") if path.is_file()]
        assert "rank1.log" in [path.name for path in files]
        assert not any(SECRET.encode() in path.read_bytes() for path in files)
        child.terminate()
        child.wait(300)
    finally:
        over.set()
        looks.join()
    assert found == set()
    log = (apart.zeusrun.run_dir() / "logs" / "rank1.log").read_text()
    assert f"secret of {len(SECRET)}" in log


@pytest.mark.long
def test_a_run_is_seen_and_cancelled_from_another_shell(pair):
    child = pair.start_and_wait(pair.job(None))
    status = pair.run("status", "--json")
    assert status.returncode == 0, status.stderr
    assert "job-1-1" in status.stdout
    assert pair.run("cancel", "job-1-1").returncode == 0
    code, trial, seen = pair.end(child)
    assert (code, trial["status"]) == (130, "CANCELLED"), seen
    pair.check_that_b_is_empty()


@pytest.mark.long
def test_the_hosts_of_an_allocation_are_those_of_its_hostfile(pair):
    hostfile = pair.zeusrun.folder / "nodes"
    hostfile.write_text("a slots=1\nb slots=2\n")
    job = pair.zeusrun.job(batch_size={"default": 48, "candidates": [48]})
    machines = {"hostfile": str(hostfile), "fan_out": pair.fan_out}
    options = ("--set", f"run_on={json.dumps(machines)}")
    assert pair.run("validate", job).returncode == 0
    planned = pair.run("submit", job, "--dry-run", *options)
    assert planned.returncode == 0, planned.stderr
    assert "48" in planned.stdout
    assert pair.zeusrun.history() == []
    pair.check_that_b_is_empty()
    code, result, seen = pair.submit(job, *options)
    trial = only_trial(result)
    assert (code, trial["status"], trial["world_size"]) == (0, "REACHED", 3), seen
    assert [share[0] for share in trial["hosts"]] == ["a", "b"]
    assert pair.ranks_with("ended") == {0, 1, 2}
    pair.check_that_b_is_empty()
