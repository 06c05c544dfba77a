"""Backward passes mark the time of a training without an optimizer of torch."""

from __future__ import annotations

import textwrap

import pytest

from tests.worker.rank import Rank

PREAMBLE = """
import os, time, torch
weight = torch.ones(3, requires_grad=True)
def loss(): return (weight * 2).square().sum()
"""


@pytest.fixture
def run(tmp_path):
    def start(script):
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE + textwrap.dedent(script))
        rank = Rank(tmp_path / "run")
        code, log = rank.run_forked(path)
        assert code == 0, log
        return rank.steps, log

    return start


@pytest.mark.parametrize(
    "step",
    [
        "loss().backward()",
        "torch.autograd.grad(loss(), weight)",
        "torch.autograd.backward([loss()])",
        "torch.utils.checkpoint.checkpoint(lambda x: x * 2, weight, use_reentrant=True).sum().backward()",
        "torch.func.grad(lambda x: x.sum())(torch.ones(3))",
    ],
)
def test_each_backward_pass_counts_once_and_is_no_step(run, step):
    count, log = run(f"""
    import torch.utils.checkpoint
    print(time.monotonic())
    for _ in range(5): {step}
    print(time.monotonic())
    """)
    began_t, ended_t = map(float, log.split())
    assert (count.steps, count.uncounted) == (0, 5)
    assert began_t <= count.first_step_t <= count.last_step_t <= ended_t


def test_what_is_printed_between_backward_passes_has_its_own_time(run):
    count, _ = run("for epoch in (1, 2, 3): print(epoch, flush=True); loss().backward()")
    assert [at for at, _ in count.notes] == [2, 4, 6]
    assert len({place.t for _, place in count.notes}) == 3


def test_once_there_is_an_optimizer_its_steps_count_and_the_first_one_is_the_beginning(run):
    count, log = run("""
    before = torch.autograd._engine_run_backward
    for _ in range(4): loss().backward()
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(2):
        loss().backward()
        print(time.monotonic())
        optimizer.step()
    print(torch.autograd._engine_run_backward is torch.autograd.graph._engine_run_backward)
    """)
    first, _, original = log.split()
    assert (count.steps, count.uncounted, original) == (2, 4, "True")
    assert count.first_step_t >= float(first)


def test_a_process_that_the_script_forks_marks_nothing(run):
    count, _ = run("""
    loss().backward()
    if os.fork() == 0:
        for _ in range(9): loss().backward()
        os._exit(0)
    os.wait()
    """)
    assert count.uncounted == 1
