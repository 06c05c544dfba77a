"""Processes that a script starts itself: whose steps count, and what is said of them."""

from __future__ import annotations

import textwrap

import pytest

from tests.factories import PYTHON
from tests.worker.rank import Rank
from zeusrun.metrics.seen import Ranks, describe_spawned, find_batch_size
from zeusrun.sidecar.events import Observed, Spawned

PREAMBLE = """
import multiprocessing, os, sys
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(100, 1))

def train(steps, batch_size=4):
    layer = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), 0.25)
    for step, (x,) in zip(range(steps), DataLoader(data, batch_size)):
        layer(x).sum().backward()
        optimizer.step()

def start(method, *args, target=train):
    process = multiprocessing.get_context(method).Process(target=target, args=args)
    process.start()
    return process

"""
GUARD = 'if __name__ == "__main__":\n'


@pytest.fixture
def run(tmp_path):
    def start(script, *, first="", forked=True, **changes):
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE + textwrap.dedent(first) + GUARD + textwrap.indent(script, "    "))
        rank = Rank(tmp_path / "run")
        code, log = rank.run_forked(path, **changes) if forked else rank.run(path)
        assert code == 0, log
        return rank, log

    return start


def counted(rank):
    return 0 if rank.steps is None else rank.steps.steps


def spawned(rank):
    """Return what was said last of each process: its world size."""
    return sorted(each.world_size or 0 for each in ranks_of(rank).spawned.values())


def ranks_of(rank):
    ranks = Ranks(1)
    for event in rank.events:
        if isinstance(event, Spawned):
            ranks = ranks.take(event)
    return ranks


def batch_size(rank):
    observed = {event.rank: event for event in rank.events if isinstance(event, Observed)}
    return find_batch_size(observed, ranks_of(rank))


def test_a_fork_beside_a_rank_that_trains_counts_no_step(run):
    rank, _ = run("""
train(3)
start("fork", 9, 50).join()
train(9)
""")
    assert counted(rank) == 12
    assert spawned(rank) == [0]
    assert batch_size(rank) is None  # the script may train in both
    assert "processes of its own" in describe_spawned(ranks_of(rank).spawned.values())


def test_forks_in_a_group_are_ranks_of_which_the_first_one_counts(run):
    first = """
    def train_in_group(rank, path):
        from torch import distributed
        distributed.init_process_group("gloo", f"file://{path}", rank=rank, world_size=2)
        train(9)
        distributed.barrier()
        distributed.destroy_process_group()
    """
    rank, _ = run(
        """
path = os.path.abspath(__file__) + ".group"
for each in [start("fork", rank, path, target=train_in_group) for rank in (0, 1)]:
    each.join()
""",
        first=first,
    )
    assert (counted(rank), spawned(rank), batch_size(rank)) == (9, [2] * 2, 8)
    text = describe_spawned(ranks_of(rank).spawned.values())
    assert text.startswith("the script started training processes of its own; zeusrun has hooks")
    arrives = describe_spawned(ranks_of(rank).spawned.values(), arrives=True)
    assert "Their batch size is the chosen one" in arrives
    assert "${batch_size/2}" not in arrives


def test_a_rank_that_its_parent_terminates_does_not_wait_for_the_grace_of_the_job(run):
    """Its parent waits for it, as when another rank has failed."""
    first = """
    def hang(rank, path, ready):
        import time, zeusrun
        from torch import distributed
        distributed.init_process_group("gloo", f"file://{path}", rank=rank, world_size=2)
        zeusrun.current().should_stop()  # from now on, it handles SIGTERM
        ready.wait()
        while True: time.sleep(600)
    """
    _, log = run(
        """
ready = multiprocessing.get_context("fork").Barrier(3)
path = os.path.abspath(__file__) + ".group"
both = [start("fork", rank, path, ready, target=hang) for rank in (0, 1)]
ready.wait()
for each in both:
    each.terminate()
for each in both:
    each.join()
print([each.exitcode for each in both])
""",
        first=first,
        TORCH_ELASTIC_SHUTDOWN_TIMEOUT="600",
    )
    assert log == "[143, 143]\n"


def test_forks_that_train_one_after_the_other_are_the_training(run):
    rank, _ = run("""
for _ in range(2):
    start("fork", 9).join()
""")
    assert counted(rank) == 18
    assert spawned(rank) == [1, 1]
    assert batch_size(rank) == 4
    assert describe_spawned(ranks_of(rank).spawned.values()) is None


def test_of_forks_that_train_at_the_same_time_one_counts(run):
    first = """
    def train_together(barrier):
        barrier.wait()
        train(1)
        barrier.wait()
        train(9)
        barrier.wait()
    """
    rank, _ = run(
        """
barrier = multiprocessing.get_context("fork").Barrier(2)
both = [start("fork", barrier, target=train_together) for _ in range(2)]
for each in both:
    each.join()
""",
        first=first,
    )
    assert counted(rank) in {10, 11}  # both may have counted their first one
    assert 0 in spawned(rank)
    assert batch_size(rank) is None
    assert "processes of its own" in describe_spawned(ranks_of(rank).spawned.values())


@pytest.mark.long  # six interpreters with torch
def test_an_interpreter_that_trains_without_a_group_is_named_and_one_that_loads_data_is_not(run):
    first = """
    class Lists:
        def __len__(self): return 2
        def __getitem__(self, n): return ",".join(m for m in sys.modules if m.startswith("zeusrun"))
    """
    rank, log = run(
        """
child = start("spawn", 9)
for (names,) in DataLoader(Lists(), num_workers=1, multiprocessing_context="spawn"):
    print(names)
child.join()
""",
        first=first,
        forked=False,
    )
    assert (counted(rank), spawned(rank), batch_size(rank)) == (0, [0], None)
    own = [name.removeprefix("zeusrun.worker.") for name in log.splitlines()[0].split(",")]
    assert sorted(own) == ["hooks", "hooks.child", "hooks.imports", "zeusrun", "zeusrun.worker"]


def test_workers_that_load_data_are_no_training(run):
    rank, _ = run("""
train(9)
for x in DataLoader(data, 10, num_workers=2): pass
""")
    assert (counted(rank), spawned(rank), batch_size(rank)) == (9, [], 4)


def test_an_interpreter_without_zeusrun_starts_as_before(tmp_path):
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {PYTHON} -S "$@"\n')
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "script.py").write_text(f"""
import multiprocessing
if __name__ == "__main__":
    multiprocessing.set_executable("{tmp_path}/python")
    child = multiprocessing.get_context("spawn").Process(target=print, args=("well",))
    child.start()
    child.join()
""")
    assert Rank(tmp_path / "run").run(tmp_path / "script.py") == (0, "well\n")


@pytest.mark.long  # it waits for ten seconds
def test_a_rank_in_a_group_with_a_stranger_does_not_pass_for_all(run):
    """As with Lightning, which starts the other ranks with subprocess."""
    script = """
import socket, subprocess
from torch import distributed
with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    port = str(listener.getsockname()[1])
code = (
    "import sys; from torch import distributed; "
    "distributed.init_process_group('gloo', 'tcp://127.0.0.1:' + sys.argv[1], rank=1, world_size=2); "
    "distributed.barrier()"
)
other = subprocess.Popen([sys.executable, "-c", code, port])
distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=0, world_size=2)
train(9)
from zeusrun.worker import environment
from zeusrun.worker.environment import StopPoll, current_environment
environment._LATE_S = 0.1
print("stop", StopPoll(current_environment()).now())
distributed.barrier()
distributed.destroy_process_group()
other.wait()
"""
    rank, log = run(script)
    assert log == "stop False\n"  # the other one would not take part in a vote
    assert (counted(rank), spawned(rank), batch_size(rank)) == (9, [2], None)
    text = describe_spawned(ranks_of(rank).spawned.values())
    assert text.startswith("the script started training processes of its own; zeusrun has no hooks")
    assert "launch: {nproc_per_node: 2}" in text
