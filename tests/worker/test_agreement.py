"""Two real ranks on gloo: they stop after the same epoch, and end well."""

from __future__ import annotations

import pytest

from tests.factories import CHILDREN
from tests.worker.rank import Rank, free_port
from zeusrun.sidecar.events import Ended

AT_ONCE = 2


@pytest.mark.parametrize("how", ["file", "signal", "target"])
def test_what_one_rank_learns_ends_both_after_the_same_epoch(tmp_path, how):
    ranks = Rank(tmp_path / "run")
    codes, _ = ranks.run_together(CHILDREN / "agrees.py", how, ZEUSRUN_MAX_EPOCHS="6")
    # A SIGTERM that is not zeusrun's has cut the training short, however well the script took it.
    assert any(codes) == (how == "signal"), (codes, ranks.log())
    epochs = "epoch 1\nepoch 2\nepoch 3\nsaved True\n"
    assert [ranks.log("0"), ranks.log("1")] == [epochs, epochs]
    ends = [event for event in ranks.events if isinstance(event, Ended)]
    assert {end.grouped for end in ends} == {True}  # though they have left it by then


@pytest.mark.long  # the short tier trains with DDP in test_sync.py, where an abort would be a warning
def test_ddp_training_ends_with_0_every_time(tmp_path):
    """Plain Python aborts in about half of all runs (torch 2.13): see TESTBED.

    Without torchrun, which takes longer than the ranks; and never forked from a process that has
    torch, because then plain Python does not abort either.
    """
    for first in range(0, 8, AT_ONCE):
        started = []
        for number in range(first, first + AT_ONCE):
            ranks, port = Rank(tmp_path / str(number)), free_port()
            for rank in ("0", "1"):
                told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
                child = ranks.start(CHILDREN / "trains_ddp.py", RANK=rank, **told)
                started.append((ranks, rank, child))
        for ranks, rank, child in started:
            assert child.wait(timeout=300) == 0, ranks.log(rank)
            assert ranks.log(rank).endswith("the end\n")
            assert not (ranks.run_dir / "error.json").exists()
