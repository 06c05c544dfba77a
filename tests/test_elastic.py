"""Trainings whose ranks come and go: real agents, ranks, kills."""

from __future__ import annotations

import csv
import itertools
import os
import random
import re
import signal
import socket
import time
import urllib.request

import pytest

from tests.elastic_scripts import PRINTED, Training, check_epochs, elastic_job, shake
from tests.runs import wait_for

pytestmark = pytest.mark.torchrun


def end_digests(run_dir):
    """Return what the ranks that trained to the end print of their parameters."""
    logs = [path.read_text() for path in sorted((run_dir / "logs").glob("rank*.log"))]
    return [found[1] for log in logs if (found := re.search(r"^end (\w+) \d+$", log, re.MULTILINE))]


def test_ranks_come_and_go_and_are_lost_while_the_others_train_on(zeusrun):
    job = elastic_job(zeusrun, epochs=5000, args=["--pause-s", "0.05"])
    training = Training(zeusrun, job)
    first = [training.board.place(slot).pid for slot in (0, 1)]
    done = zeusrun("resize", "job", "3")
    assert (done.returncode, done.stdout) == (0, "job-1-1 has 3 ranks\n"), done.stderr
    training.wait_for_ranks(3)
    training.resize(2)
    training.wait_for_ranks(2)
    training.wait_for_steps()
    assert [training.board.place(slot).pid for slot in training.members] == first
    training.kill(0)
    training.wait_for_ranks(1)
    assert training.board.place(training.members[0]).pid == first[1]
    training.resize(1)  # while another one starts in its place
    training.wait_for_steps(45)  # an epoch has 20
    training.resize(0)
    shown = training.end_missed()
    assert training.check(kills=1) > 20
    (trial,) = zeusrun.history()
    assert (trial["status"], trial["epochs"] > 1) == ("CANCELLED", True)
    changes = trial["world_sizes"]
    assert [change[2] for change in changes] == [2, 3, 2, 1]
    steps = [change[5] for change in changes]
    assert steps == sorted(steps)
    assert all(0 < paused_s < took_s for _, _, _, took_s, paused_s, _ in changes[1:-1])
    assert trial["observed_batch_size"] in {None, 48}
    line = " ".join(shown.split())
    assert re.search(r"· 2 → 3 ranks in [\d.]+ m?s, the others paused \d+ m?s, step \d+: a u", line)
    assert re.search(r"· 2 → 1 ranks in .*, step \d+: rank 0 was ended by SIGKILL", line)
    assert re.search(
        r"^\d\d:\d\d:\d\d\.\d{6} generation 2 trains after", training.log, re.MULTILINE
    )


@pytest.mark.long  # three ranks import torch; the parts are in tests/elastic/rank
def test_an_unedited_script_changes_its_ranks_between_two_epochs(zeusrun):
    args = ["--share", "${local_batch_size}", "--epochs", "5000", "--pause-s", "0.05"]
    training = Training(
        zeusrun, elastic_job(zeusrun, "elastic_epochs.py", 5000, args=args, metrics=PRINTED)
    )
    for ranks in (3, 2):
        training.resize(ranks)
        training.wait_for_ranks(ranks)
        training.wait_for_epochs(2)
    training.resize(0)
    training.end_missed()
    epochs, restarts = check_epochs(training)
    assert (epochs > 5, restarts) == (True, 0)
    ranks = {step["epoch"]: step["ranks"] for own in training.steps().values() for step in own}
    changes = [(0, 2)]  # epochs completed before there were so many ranks
    changes += [(e, ranks[e + 1]) for e in range(1, max(ranks)) if ranks[e] != ranks[e + 1]]
    (trial,) = zeusrun.history()
    assert [tuple(change[1:3]) for change in trial["world_sizes"]] == changes
    assert [change[1] for change in changes] == [2, 3, 2]


@pytest.mark.long
def test_a_killed_rank_of_an_unedited_script_restarts_all_from_the_checkpoint(zeusrun):
    args = ["--batch-size", "${batch_size}", "--checkpoint", "${checkpoint_dir}/last.pt"]
    training = Training(
        zeusrun, elastic_job(zeusrun, "elastic_epochs.py", 20, args=args, metrics=PRINTED)
    )
    wait_for(lambda: training.board.place(0).epoch > 3)
    training.kill(1)
    training.end_missed()
    (trial,) = zeusrun.history()
    assert trial["epochs"] == 20
    assert "the ranks were restarted once" in " ".join(trial["warnings"])


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("given", [[], ["--accumulates"]], ids=["sgd", "accumulates"])
def test_whatever_happens_to_ranks_the_training_is_whole(zeusrun, given, seed):
    sizes = {"candidates": [48], "default": 48}
    if given:
        sizes["per_device_max"] = 8
    limits = {"losses": 1000}
    args = [*given, "--epochs", "5000", "--pause-s", "0.02"]
    job = elastic_job(zeusrun, epochs=5000, args=args, elastic=limits, batch_size=sizes)
    training = Training(zeusrun, job)
    shake(training, seed, 25)
    assert len(set(end_digests(training.run_dir))) <= 1
    (trial,) = zeusrun.history()
    assert trial["status"] == "CANCELLED"


@pytest.mark.long
def test_a_rank_lost_in_a_collective_outside_of_a_step_lets_all_start_again(zeusrun):
    args = ["--epochs", "3", "--evaluates"]
    training = Training(zeusrun, elastic_job(zeusrun, epochs=3, args=args))
    wait_for((training.run_dir / "evaluates").exists)
    training.kill(1)
    shown = training.end_missed()
    assert "all ranks start again" in shown
    (trial,) = zeusrun.history()
    assert (trial["status"], trial["epochs"]) == ("MISSED", 3)


@pytest.mark.long
def test_whatever_happens_to_ranks_of_an_unedited_script_each_epoch_is_whole(zeusrun):
    chance = random.Random(3)
    args = ["--share", "${local_batch_size}", "--checkpoint", "${checkpoint_dir}/last.pt"]
    given = {"args": [*args, "--epochs", "5000"], "metrics": PRINTED, "elastic": {"losses": 1000}}
    training = Training(zeusrun, elastic_job(zeusrun, "elastic_epochs.py", 5000, **given))
    kills = 0
    for _ in range(16):
        head = training.board.place(0)
        if chance.random() < 0.3 and head.epoch > 2:
            training.kill(chance.randrange(len(training.members)))
            kills += 1
        else:
            ranks = chance.randint(1, 4)
            training.resize(ranks)
            if chance.random() < 0.6:
                training.wait_for_ranks(ranks)
        training.wait_for_epochs(chance.randint(0, 3))
    training.resize(0)
    training.end_missed()
    epochs, restarts = check_epochs(training)
    assert (epochs > 16, restarts) == (True, kills)
    (trial,) = zeusrun.history()
    assert (trial["status"], trial["epochs"]) == ("CANCELLED", epochs)


@pytest.mark.long
def test_a_rank_that_is_killed_before_it_leaves_an_unedited_script_is_a_lost_one(zeusrun):
    args = ["--batch-size", "${batch_size}", "--checkpoint", "${checkpoint_dir}/last.pt"]
    args += ["--epochs", "6", "--pause-s", "0.2"]  # an epoch takes four seconds
    job = elastic_job(zeusrun, "elastic_epochs.py", 6, args=args, metrics=PRINTED)
    training = Training(zeusrun, job)
    wait_for(lambda: training.board.place(0).epoch > 2)
    leaver = training.board.place(1).pid
    training.resize(1)
    wait_for(lambda: training.members == (0,))
    os.kill(leaver, signal.SIGKILL)
    training.end_missed()
    assert check_epochs(training) == (6, 1)


@pytest.mark.long
@pytest.mark.parametrize("script", ["elastic_steps.py", "elastic_epochs.py"])
def test_a_batch_size_that_is_scaled_follows_the_ranks(zeusrun, script):
    args = ["--epochs", "40", "--pause-s", "0.02"]
    given = {"args": args, "elastic": {"batch_size": "scaled", "learning_rate": "linear"}}
    if script == "elastic_epochs.py":
        given |= {"args": [*args, "--batch-size", "${batch_size}"], "metrics": PRINTED}
    training = Training(zeusrun, elastic_job(zeusrun, script, 40, **given))
    for ranks in (4, 1):
        training.resize(ranks)
        training.wait_for_ranks(ranks)
    training.end_missed()
    shares = [len(step["samples"]) for own in training.steps().values() for step in own]
    assert max(shares) == 24
    assert shares.count(24) > 0.9 * len(shares)  # the last ones of an epoch are smaller
    if script == "elastic_steps.py":
        training.check()
        for step in itertools.chain(*training.steps().values()):
            scheduled = 0.01 * 0.1 ** ((step["epoch"] - 1) // 3)
            assert step["rate"] == pytest.approx(scheduled * step["ranks"] / 2)
    (trial,) = zeusrun.history()
    assert (trial["variant"], trial["observed_batch_size"]) == ("ranks", 48)
    sizes = [size for _, size in trial["batch_sizes"]]
    assert [size for size in sizes if size != 72] == [48, 96, 24]


@pytest.mark.long
def test_resize_says_at_once_that_ranks_cannot_change_and_which_number_they_can_have(zeusrun):
    sizes = {"candidates": [50], "default": 50}
    args = ["--batch-size", "50", "--epochs", "400", "--pause-s", "0.02"]
    given = {"args": args, "metrics": PRINTED, "batch_size": sizes}
    training = Training(zeusrun, elastic_job(zeusrun, "elastic_epochs.py", 400, **given))
    done = zeusrun("resize", "job", "4")
    assert (done.returncode, done.stdout) == (
        0,
        "job-1-1 has 2 ranks: 4 would not share its batch size evenly\n",
    )
    assert zeusrun("cancel", "job").returncode == 0
    assert training.end()[0] == 130


@pytest.mark.long
def test_a_script_that_trains_alone_cannot_change_and_says_so(zeusrun):
    given = {"metrics": PRINTED, "elastic": {"max": 2}, "launch": {"nproc_per_node": 1}}
    submit = zeusrun.start("submit", elastic_job(zeusrun, "elastic_alone.py", 3, **given))
    log = zeusrun.run_dir() / "logs" / "rank0.log"
    wait_for(lambda: log.exists() and "epoch: 1" in log.read_text())
    done = zeusrun("resize", "job", "2")
    assert done.returncode == 2
    assert "the ranks of job-1-1 cannot change: zeusrun show job-1-1  says why" in done.stderr
    assert submit.wait(120) == 4
    (warning,) = zeusrun.history()[0]["warnings"]
    assert "does not train a DistributedDataParallel on each number of ranks" in warning


@pytest.mark.long
def test_fewer_ranks_than_may_go_on_start_again_at_once(zeusrun):
    training = Training(zeusrun, elastic_job(zeusrun, epochs=100, elastic={"min": 2}))
    training.wait_for_steps()
    training.kill(1)
    begun_t = time.monotonic()
    wait_for(lambda: "2 processes have started" in training.log.partition("again")[2])
    assert time.monotonic() - begun_t < 8
    assert zeusrun("cancel", "job").returncode == 0
    assert training.end()[0] == 130


@pytest.mark.long
def test_a_run_that_has_lost_too_many_says_so(zeusrun):
    training = Training(zeusrun, elastic_job(zeusrun, epochs=100, elastic={"losses": 0}))
    training.wait_for_steps()
    training.kill(1)
    code, shown = training.end()
    assert (code, "Traceback" in shown) == (3, False), shown
    assert "another rank was lost, but elastic.losses allows 0" in " ".join(shown.split())


@pytest.mark.long
def test_a_schedule_of_sizes_is_followed_and_0_ends_the_training(zeusrun):
    job = elastic_job(zeusrun, epochs=50, elastic={"steps": "20:3,200:1,260:0"})
    training = Training(zeusrun, job)
    shown = training.end_missed()
    (trial,) = zeusrun.history()
    sizes = [change[2] for change in trial["world_sizes"]]
    late = "3 ranks after step 20 did not take effect before step 200"
    assert sizes in ([2, 3, 1], [2, 1])  # if the third was still starting
    assert [late in each for each in trial["warnings"]] == [True] * (sizes == [2, 1])
    assert (trial["status"], trial["reason_code"]) == ("CANCELLED", "planned_end")
    assert re.fullmatch(r"elastic\.steps ended the training, after 26\d steps", trial["reason"])
    assert trial["reason"] in " ".join(shown.split())


@pytest.mark.long
@pytest.mark.parametrize("elastic", [{"steps": "5:0"}, {"policy": "elastic_policy:Ends"}])
def test_a_training_that_is_ended_as_planned_before_it_reports_is_no_failure(zeusrun, elastic):
    sizes = {"candidates": [24, 48, 96], "default": 48}
    more = {"attempts": 3, "policy": {"name": "auto"}, "batch_size": sizes}
    code, shown = Training(zeusrun, elastic_job(zeusrun, elastic=elastic, **more)).end()
    (trial,) = zeusrun.history()  # there is no other attempt
    assert (code, trial["status"], trial["reason_code"]) == (4, "CANCELLED", "planned_end"), shown
    assert trial["reason"].startswith(f"elastic.{next(iter(elastic))} ended the training, after ")
    assert trial["warnings"] == []


@pytest.mark.long
def test_a_target_that_was_reached_before_the_schedule_ends_the_training_stays_reached(zeusrun):
    goal = {"target": 0.001, "max_epochs": 50, "on_target": "continue"}
    job = elastic_job(zeusrun, epochs=50, elastic={"steps": "50:0"}, objective=goal)
    code, shown = Training(zeusrun, job).end()
    (trial,) = zeusrun.history()
    assert (code, trial["status"], trial["epochs"]) == (0, "REACHED", 1), shown


@pytest.mark.long
def test_a_schedule_that_ends_with_an_epoch_lets_nobody_wait(zeusrun):
    args = ["--epochs", "50", "--pause-s", "0.01", "--reports-s", "3"]
    training = Training(
        zeusrun, elastic_job(zeusrun, epochs=50, args=args, elastic={"steps": "20:0"})
    )
    begun_t = time.monotonic()
    training.end_missed()
    assert time.monotonic() - begun_t < 18


@pytest.mark.long
def test_a_class_of_the_user_decides(zeusrun):
    elastic = {"policy": "elastic_policy:Grows"}
    training = Training(zeusrun, elastic_job(zeusrun, epochs=5000, elastic=elastic))
    training.wait_for_ranks(3)
    training.resize(0)
    assert training.end()[0] == 4
    training.check()


@pytest.mark.long
@pytest.mark.parametrize("lost_by", ["killed", "any"])
def test_an_exception_loses_a_rank_only_if_that_is_allowed(zeusrun, lost_by):
    args = ["--fails-in", "3"]
    training = Training(
        zeusrun, elastic_job(zeusrun, args=args, elastic={"lost_by": lost_by, "losses": 1})
    )
    code, shown = training.end()
    if lost_by == "any":
        assert code == 4, shown
    else:
        assert code == 3
        assert "ValueError: rank 1 fails" in shown


HANGS = ["step", "backward", "no_sync", "between", "barrier", "gather"]


@pytest.mark.long
@pytest.mark.parametrize("norm", [[], ["--norm"]], ids=["no buffers", "buffers"])
@pytest.mark.parametrize("at", HANGS)
def test_a_rank_for_which_the_others_wait_is_killed_wherever_it_is(zeusrun, at, norm):
    limits = {"hang_s": 3, "lost_by": "any"}
    args = ["--at", at, *norm]
    job = elastic_job(zeusrun, "elastic_hangs.py", epochs=20, args=args, elastic=limits)
    training = Training(zeusrun, job)
    training._wait(lambda: "process 1 " in training.log and "hangs: killing it" in training.log)
    assert training.end()[0] == 4  # the target is out of reach
    assert training.log.count("hangs: killing it") == 1
    if norm:  # 200 steps with two forward passes each, also where a forward pass was lost
        assert "tracked 400\n" in (training.run_dir / "logs" / "rank0.log").read_text()


@pytest.mark.long
def test_a_rank_that_computes_while_the_others_wait_is_left_alone(zeusrun):
    job = elastic_job(
        zeusrun, "elastic_hangs.py", epochs=20, args=["--at", "busy"], elastic={"hang_s": 2}
    )
    training = Training(zeusrun, job)
    assert training.end()[0] == 4
    assert "hangs" not in training.log


@pytest.mark.long
def test_a_rank_that_hangs_is_killed_and_lost(zeusrun):
    job = elastic_job(zeusrun, epochs=30, elastic={"hang_s": 3, "losses": 1})
    training = Training(zeusrun, job)
    training.wait_for_steps()
    training.kill(1, signal.SIGSTOP)
    training.wait_for_ranks(1)
    assert "hangs" in training.log
    assert training.end()[0] == 4


@pytest.mark.long
def test_ranks_are_added_as_long_as_they_pay_and_what_was_measured_is_kept(zeusrun):
    elastic = {"max": 3, "provision": {"by": "throughput", "every": 10}}
    training = Training(zeusrun, elastic_job(zeusrun, epochs=5000, elastic=elastic))
    table = training.run_dir / "elastic" / "provision.csv"
    wait_for(lambda: table.exists() and len(table.read_text().splitlines()) == 3)
    two, three = csv.DictReader(table.open())
    assert (two["ranks"], three["ranks"], two["decision"]) == ("2", "3", "add a rank")
    assert 10 <= int(two["step"]) < int(three["step"])
    assert 0 < float(two["seconds"]) < float(three["seconds"])
    assert float(two["joules_per_sample"]) >= 0
    stays = float(three["samples_per_second"]) >= (1 + 1 / 9) * float(two["samples_per_second"])
    assert three["decision"] == ("stay" if stays else "remove a rank")
    training.wait_for_ranks(3 if stays else 2)
    training.resize(0)
    assert training.end()[0] == 4


@pytest.mark.long
def test_the_endpoint_resizes_and_stops(zeusrun):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    training = Training(zeusrun, elastic_job(zeusrun, epochs=200, elastic={"listen": listen}))

    def call(method, path, body=None):
        request = urllib.request.Request(f"http://{listen}{path}", body, method=method)
        return urllib.request.urlopen(request, timeout=300).status

    assert call("PUT", "/config", b'{"size": 3}') == 202
    training.wait_for_ranks(3)
    assert call("DELETE", "/config") == 202
    training.wait_for_ranks(2)
    assert call("POST", "/stop", b"") == 202
    assert training.end()[0] == 130
    (trial,) = zeusrun.history()
    assert (trial["status"], trial["reason_code"]) == ("CANCELLED", "stop_requested")
    assert trial["reason"] == "stopped by POST /stop at the endpoint (elastic.listen)"
