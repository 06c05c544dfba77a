"""Workers that die: when a run goes on, and which numbers are never tried again."""

from __future__ import annotations

import pytest

from tests.loader.rank.running import DIES

WRITES = """
def collate(items): return torch.tensor(items), bytes(10_000_000)
loader = DataLoader(Data(40, 0.0), 4, shuffle=True, num_workers={own}, collate_fn=collate)
def find_writers(iterator):
    for worker in iterator._workers:
        for task in os.listdir(f"/proc/{{worker.pid}}/task"):
            if "pipe_write" in open(f"/proc/{{worker.pid}}/task/{{task}}/wchan").read():
                yield worker
iterator = iter(loader)
for number in range(10):
    batch, _ = next(iterator)
    if number == 2:
        while not (writers := [*find_writers(iterator)]): time.sleep(0.01)
        writers[0].kill()
    optimizer.zero_grad(); layer(torch.ones(1, 1)).sum().backward(); optimizer.step()
    print("seen", *batch.tolist(), flush=True)
"""


def test_a_worker_that_dies_while_it_sends_a_batch_is_noticed(run):
    own = run(WRITES.format(own=2), None, fails=True)
    assert "killed by signal" in own.log
    found = run(WRITES.format(own=1), workers=2)
    assert found.seen[: len(own.seen)] == own.seen
    assert len(found.seen) == 10
    assert "one died" in found.problems[0]


@pytest.mark.parametrize("ends", ["SIGTERM", "SIGINT"])
def test_a_worker_that_a_signal_has_ended_ends_the_run_as_ever_and_bans_no_number(run, ends):
    script = DIES.format(more=1, own=1, also="", signal=ends)
    script = script.replace("data.read", f"signal.signal(signal.{ends}, signal.SIG_DFL)\ndata.read")
    found = run(script, fails=True)
    assert "Error" in found.log
    assert not [each for each in found.events if each.died]


def test_a_fixed_number_of_which_one_died_is_not_tried_again(run):
    script = "train(DataLoader(Data(40, 0.0), 4, shuffle=True, num_workers=1), passes=2)"
    found = run(script, workers=4, never=[3])
    assert found.passes == [2, 2]
    assert "one died in an earlier run, so there are 2" in found.problems[0]


def test_ranks_that_start_again_do_not_try_the_number_again(run):
    script = DIES.format(more=1, own=1, also="", signal="SIGKILL")
    both = [run(script, folder="run") for _ in range(2)][1]
    assert both.passes[4:] == [1, 1, 1, 1]
    assert len([each for each in both.events if each.died]) == 1
