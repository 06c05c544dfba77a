"""When a process goes over to other ranks, decided on a real board, without process groups."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import pytest

from tests.forks import torch_forks
from tests.runs import wait_for
from zeusrun.elastic.rank import member as member_module
from zeusrun.elastic.rank.board import Board, Generation
from zeusrun.elastic.rank.member import BY_EPOCHS, BY_STEPS, Member
from zeusrun.sidecar.plan import RankPlan


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Build members of a run whose first generation is theirs; a change has no process group."""
    board, stop = Board(tmp_path, create=True), threading.Event()

    def change(member):
        generation = board.read_generation(board.newest)
        member._number, member._is_newcomer = generation.number, False
        environment = member._environment
        environment.rank = generation.members.index(member._slot)
        environment.world_size = len(generation.members)

    def make(slot=0, since=0, steps=None):
        environment = SimpleNamespace(
            plan=RankPlan(run_dir=str(tmp_path)),
            slot=slot,
            since=since,
            rank=slot,
            world_size=2,
            epoch=None,
        )
        observer = SimpleNamespace(consumed=None, exchange=lambda part: part)
        member = Member(environment, {"steps": steps}, observer, None)
        member._number = since or board.newest
        member._is_first = False  # it has no models
        return member

    monkeypatch.setattr(Member, "_change", change)
    monkeypatch.setattr("zeusrun.elastic.rank.state.find_obstacle", lambda _: None)
    monkeypatch.setattr("zeusrun.elastic.rank.beat._beat", lambda *_: stop.wait())
    board.publish(Generation(1, (0, 1)))
    yield SimpleNamespace(board=board, member=make)
    stop.set()
    for thread in threading.enumerate():
        if thread.name == "zeusrun-beat":
            thread.join()
    board.close()


def test_a_change_begins_after_the_same_step_on_every_rank(build):
    members = [build.member(slot) for slot in (0, 1)]
    assert [each.after_step() for each in members] == [False, False]
    build.board.publish(Generation(2, (0, 1, 2)))
    changed = [[each.after_step() for each in members] for _ in range(3)]
    assert changed == [[False, False], [False, False], [True, True]]
    assert build.board.switch == (2, 4)
    assert [each.after_step() for each in members] == [False, False]


def test_only_rank_0_announces_it(build):
    one, zero = build.member(1), build.member(0)
    build.board.publish(Generation(2, (0, 1, 2)))
    for _ in range(5):
        assert not one.after_step()
    assert build.board.switch == (0, 0)
    zero.after_step()
    assert build.board.switch == (2, 3)


def test_steps_are_counted_for_the_others(build):
    member = build.member()
    for _ in range(3):
        member.after_step()
    assert build.board.place(0).steps == 3


def test_a_change_waits_while_the_epoch_has_fewer_samples_left_than_ranks(build):
    member = build.member()
    build.board.publish(Generation(2, (0, 1, 2, 3)))
    for rest in (11, 7, 3):
        assert not member.after_step(rest)
    assert member.after_step(0)


def test_it_does_not_wait_for_as_many_samples_as_ranks(build):
    member = build.member()
    build.board.publish(Generation(2, (0, 1, 2, 3)))
    assert [member.after_step(rest) for rest in (12, 8, 4)] == [False, False, True]


def test_rank_0_follows_the_schedule(build):
    members = [build.member(slot, steps="2:4,3:0") for slot in (0, 1)]
    wanted = []
    for _ in range(4):
        for member in members:
            member.after_step()
        wanted.append(build.board.wanted)
    nothing = build.board.wanted[0], 0, "the schedule"
    assert wanted[0][0] == 0
    assert wanted[1:] == [(1, 4, "the schedule"), nothing, nothing]


def test_the_schedule_counts_the_steps_of_the_clock(build):
    member = build.member(steps="100:3")
    member.parts["clock"] = lambda _: (99, 0.0, 1)
    member.after_step()
    assert build.board.wanted[0] == 0
    member.parts["clock"] = lambda _: (100, 0.0, 1)
    member.after_step()
    assert build.board.wanted == (1, 3, "the schedule")


def test_a_rank_that_has_begun_says_that_it_trains_by_steps(build):
    member = build.member()
    assert not member.is_alone
    member.enter()
    assert build.board.place(0).mode == BY_STEPS
    with member.step():
        assert build.board.place(0).is_in_step == 1
    assert build.board.place(0).is_in_step == 0


def test_a_newcomer_waits_until_it_is_a_member(build):
    newcomer = build.member(2, since=1)
    assert newcomer.is_alone
    thread = threading.Thread(target=newcomer.enter)
    thread.start()
    wait_for(lambda: build.board.place(2).is_ready)
    assert thread.is_alive()
    build.board.publish(Generation(2, (0, 1, 2)))
    thread.join()
    assert not newcomer.is_alone
    assert newcomer._environment.world_size == 3


def test_an_unedited_script_changes_between_two_epochs(build):
    members = [build.member(slot) for slot in (0, 1)]
    begin = lambda epoch: [m.begin_epoch(1, epoch, is_training=True) for m in members]  # noqa: E731
    assert begin(1) == [False, False]
    assert {build.board.place(slot).mode for slot in (0, 1)} == {BY_EPOCHS}
    build.board.publish(Generation(2, (0, 1, 2)))
    assert begin(2) == [False, False]
    assert build.board.switch == (2, 3)
    assert begin(3) == [True, True]
    assert begin(4) == [False, False]


def test_an_unedited_script_follows_the_schedule_as_an_epoch_begins(build):
    member = build.member(steps="100:3")
    for epoch, steps, orders in ((1, 0, 0), (2, 60, 0), (3, 120, 1), (4, 180, 1)):
        member.parts["clock"] = lambda _, steps=steps: (steps, 0.0, 1)
        member.begin_epoch(1, epoch, is_training=True)
        assert build.board.wanted[0] == orders
    assert build.board.wanted[1:] == (3, "the schedule")


def test_loaders_that_do_not_train_change_nothing(build):
    member = build.member()
    build.board.publish(Generation(2, (0, 1, 2)))
    for epoch in range(1, 5):
        assert not member.begin_epoch(2, epoch, is_training=False)
    assert (build.board.switch, build.board.place(0).mode) == ((0, 0), 0)


def test_nor_do_loaders_beside_that_of_zeusrun(build):
    member = build.member()
    member.enter()
    build.board.publish(Generation(2, (0, 1, 2)))
    for epoch in range(1, 5):
        assert not member.begin_epoch(2, epoch, is_training=True)
    assert build.board.place(0).mode == BY_STEPS


def test_a_newcomer_of_an_unedited_script_runs_through_the_epochs_that_have_begun(build):
    zero, newcomer = build.member(0), build.member(2, since=1)
    zero.begin_epoch(1, 5, is_training=True)
    for epoch in range(1, 6):
        assert not newcomer.begin_epoch(1, epoch, is_training=True)
    assert not build.board.place(2).is_ready
    assert not newcomer.begin_epoch(2, 1, is_training=False)  # another loader
    joined = []
    thread = threading.Thread(
        target=lambda: joined.append(newcomer.begin_epoch(1, 6, is_training=True))
    )
    thread.start()
    wait_for(lambda: build.board.place(2).is_ready)
    build.board.publish(Generation(2, (0, 1, 2)))
    zero.begin_epoch(1, 6, is_training=True)  # announces it for the seventh
    thread.join()
    assert joined == [False]
    thread = threading.Thread(
        target=lambda: joined.append(newcomer.begin_epoch(1, 7, is_training=True))
    )
    thread.start()
    assert zero.begin_epoch(1, 7, is_training=True)
    thread.join()
    assert joined == [False, True]
    assert not newcomer.is_alone


def test_an_error_of_the_script_within_a_step_is_raised(build):
    member = build.member()
    with pytest.raises(ValueError, match="mine"), member.step():
        raise ValueError("mine")
    assert not member.is_lost
    assert build.board.place(0).is_in_step == 0


def test_alone_no_error_is_the_loss_of_another_rank(build):
    member = build.member()
    member._environment.world_size = 1
    with pytest.raises(RuntimeError, match="mine"), member.step():
        raise RuntimeError("mine")


def test_lack_of_memory_is_the_own_error(build):
    member = build.member()
    text = "CUDA out of memory. Tried to allocate 1 GiB"
    with pytest.raises(RuntimeError, match="memory"), member.step():
        raise RuntimeError(text)


def test_an_error_without_a_lost_rank_is_raised_after_a_while(build, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(member_module, "_NOTICED_S", 0.05)
    member = build.member()
    with pytest.raises(RuntimeError, match="mine"), member.step():
        raise RuntimeError("mine")
    assert not member.is_lost


def test_an_error_is_a_loss_if_the_agent_has_seen_one(build):
    pytest.importorskip("torch")
    member = build.member()
    with member.step():
        build.board.publish(Generation(2, (0,), "rank 1 was ended by SIGKILL"))
        raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    assert member.is_lost
    member.recover()
    assert not member.is_lost
    assert member._environment.world_size == 1


KEPT = """
import gc, os, sys, weakref
import torch
from zeusrun.elastic.rank import groups

groups.open_group(groups.distributed.FileStore(f"{sys.argv[1]}/1", 1), 0, 1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
kept = weakref.ref(model.process_group)
groups.distributed.destroy_process_group()
del model
gc.collect()
assert kept() is not None
groups.open_group(groups.distributed.FileStore(f"{sys.argv[1]}/2", 1), 0, 1)
gc.collect()
assert kept() is None
print("done", flush=True)
os._exit(0)
"""


BUILT_AGAIN = """
import os, sys
from pathlib import Path
import torch
from zeusrun.elastic.rank import groups

cls = torch.nn.parallel.DistributedDataParallel
del cls._update_process_group
groups.open_group(groups.distributed.FileStore(f"{sys.argv[1]}/1", 1), 0, 1)
model = cls(torch.nn.Linear(2, 1), gradient_as_bucket_view=True)
model._zeusrun_arguments = {"gradient_as_bucket_view": True}
before = model.process_group
groups.close_group()
groups.open_group(groups.distributed.FileStore(f"{sys.argv[1]}/2", 1), 0, 1)
groups.replace_group(model)
assert model.process_group is not before
model(torch.ones(3, 2)).sum().backward()
assert model.gradient_as_bucket_view
assert model.module.weight.grad.tolist() == [[3.0, 3.0]]
groups.close_group()
print("done", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("script", [BUILT_AGAIN, KEPT], ids=["built again", "kept"])
def test_a_model_of_another_group_is_built_again_and_a_group_lives_until_the_next(script, tmp_path):
    """In a child that frees no model.

    torch 2.13 may wait for ever if a model is freed right after its last all-reduce: it then waits
    for gloo's thread, which needs the interpreter's lock to free that all-reduce.
    """
    pytest.importorskip("torch")
    with open(tmp_path / "log", "wb") as log:
        child = torch_forks().start(script, [str(tmp_path)], dict(os.environ), tmp_path, log)
    try:
        assert child.wait(300) == 0, (tmp_path / "log").read_text()
    finally:
        child.kill()
    assert (tmp_path / "log").read_text() == "done\n"
