"""For how long a training waits for its data, in this process and over torch."""

from __future__ import annotations

import textwrap

import pytest

from tests.worker.rank import Rank

PREAMBLE = """
import threading, time, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Slow(Dataset):
    def __init__(self, seconds, samples=20, read=lambda n: None):
        self.seconds, self.samples, self.read = seconds, samples, read
    def __len__(self): return self.samples
    def __getitem__(self, n):
        time.sleep(self.seconds)
        self.read(n)
        return torch.ones(4)

class Stream(IterableDataset):
    def __iter__(self):
        for n in range(20):
            time.sleep(0.01)
            yield torch.ones(4)

layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), 0.25)

def step(seconds=0.0):
    time.sleep(seconds)
    optimizer.zero_grad()
    layer(torch.ones(1, 4)).sum().backward()
    optimizer.step()
"""
EACH = "for batch in {loader}: step({seconds})"


@pytest.fixture
def waits(tmp_path):
    """Run a script, and return the waits of its training and of its other loaders."""

    def run(script):
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE + textwrap.dedent(script))
        rank = Rank(tmp_path / "run")
        code, log = rank.run_forked(path)
        assert code == 0, log
        return rank.steps.waits_s

    return run


@pytest.mark.parametrize(
    ("script", "training_s", "other_s"),
    [
        pytest.param(  # 19 batches come after the first step
            EACH.format(loader="DataLoader(Slow(0.02))", seconds=0.01), 0.38, 0.0, id="no workers"
        ),
        pytest.param(
            "time.sleep(0.5)\n" + EACH.format(loader="DataLoader(Slow(0.001))", seconds=0.02),
            0.02,
            0.0,
            id="what comes before the training is no wait",
        ),
        pytest.param(
            EACH.format(loader="DataLoader(Slow(0.01), num_workers=2)", seconds=0.03),
            0.0,
            0.0,
            id="workers that are fast enough",
        ),
        pytest.param(
            """
            loader = DataLoader(Slow(0.04), num_workers=2, persistent_workers=True)
            for epoch in range(2):
                for batch in loader: step(0.0)
            """,
            0.74,  # each batch takes 0.02 s, and the first two of a pass 0.04
            0.0,
            id="workers that stay",
        ),
        pytest.param(EACH.format(loader="DataLoader(Stream())", seconds=0), 0.19, 0.0, id="stream"),
        pytest.param(
            """
            for epoch in range(3):
                for batch in DataLoader(Slow(0.01)): step(0.0)
                for batch in DataLoader(Slow(0.02, samples=5)): pass
            """,
            0.59,
            0.3,
            id="a loader for each pass, and an evaluation",
        ),
        pytest.param(
            """
            inner = DataLoader(Slow(0.01, samples=10_000))
            parts = iter(inner)
            for batch in DataLoader(Slow(0.0, read=lambda n: next(parts))): step(0.0)
            """,
            0.19,
            0.0,
            id="a loader within another one",
        ),
        pytest.param(
            """
            inner = DataLoader(Slow(0.0, samples=2), num_workers=1)
            for batch in DataLoader(Slow(0.0, samples=60, read=lambda n: [*inner])): step(0.0)
            """,
            None,  # as long as it takes
            0.0,
            id="a loader within another one starts workers",
        ),
        pytest.param(
            """
            begun, ends = threading.Event(), threading.Event()
            def read(n):
                begun.set()
                ends.wait()
            other = DataLoader(Slow(0.0, read=read))
            threading.Thread(target=lambda: next(iter(other)), daemon=True).start()
            begun.wait()
            for batch in DataLoader(Slow(0.02)): step(0.0)
            ends.set()
            """,
            0.38,
            0.0,
            id="a thread waits for another loader",
        ),
        pytest.param(
            """
            loader = DataLoader(Slow(0.0, read=lambda n: [*DataLoader(Slow(0.01, samples=2))]),
                                num_workers=1)
            for epoch in range(2):
                for batch in loader: step(0.03)
            """,
            0.03,  # a pass begins
            0.0,
            id="a loader within a worker",
        ),
        pytest.param(
            """
            loaders = DataLoader(Slow(0.01)), DataLoader(Slow(0.01))
            for epoch in range(3):
                for one, two in zip(*loaders): step(0.0)
            """,
            1.18,
            0.0,
            id="two loaders feed a step",
        ),
        pytest.param(
            """
            def ahead():
                batches = iter(DataLoader(Slow(0.01)))
                held = next(batches)
                for batch in batches:
                    yield held
                    held = batch
                yield held
            for batch in ahead(): step(0.02)
            """,
            0.18,
            0.0,
            id="a loop that reads a batch ahead waits, too",
        ),
    ],
)
def test_the_training_waits_for(waits, script, training_s, other_s):
    found = waits(script)
    if training_s is not None:
        assert found[0] == pytest.approx(training_s, rel=0.5, abs=0.2)
    assert found[1] == pytest.approx(other_s, rel=0.5, abs=0.2)


def test_whether_it_waits_for_another_thread_is_unknown(waits):
    script = """
    import queue
    batches = queue.Queue(2)

    def read():
        for epoch in range(2):
            for batch in DataLoader(Slow(0.01)): batches.put(batch)
        batches.put(None)

    threading.Thread(target=read, daemon=True).start()
    while batches.get() is not None: step(0.0)
    """
    assert waits(script)[0] is None


def test_without_a_loader_nothing_is_known(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(PREAMBLE + "for _ in range(5): step(0.01)")
    rank = Rank(tmp_path / "run")
    assert rank.run_forked(path)[0] == 0
    assert rank.steps.passes == 0
