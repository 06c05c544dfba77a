"""Passes that begin within another one, or with workers that stay: the data are the script's."""

from __future__ import annotations

import re

import pytest

from tests.loader.rank.running import FOUR_THAT_STAY

PEEKS = """
loader = DataLoader(Data(40, 0.0), 4, num_workers=1, shuffle=True)
for epoch in range(6):
    seen = []
    for n, batch in enumerate(loader):
        optimizer.zero_grad(); layer(torch.ones(1, 1)).sum().backward(); optimizer.step()
        seen += batch.tolist()
        if n == 5: seen += next(iter(loader)).tolist()
    print("seen", *seen, "with", loader.num_workers, flush=True)
"""
ZIPPED = """
loader = DataLoader(Data(40, 0.0), 4, num_workers=1, shuffle=True)
for epoch in range(3):
    seen = []
    for one, other in zip(loader, loader):
        optimizer.zero_grad(); layer(torch.ones(1, 1)).sum().backward(); optimizer.step()
        seen += [*one.tolist(), *other.tolist()]
    print("seen", *seen, "with", loader.num_workers, flush=True)
"""


@pytest.mark.parametrize("script", [PEEKS, ZIPPED])
def test_a_pass_within_another_one_reads_what_it_does_in_the_script(run, script):
    tuned, plain = run(script, start=FOUR_THAT_STAY), run(script, None)
    read = [[line.split(" with ")[0] for line in each.seen] for each in (tuned, plain)]
    assert read[0] == read[1]
    assert all(line.endswith("with 4") for line in tuned.seen)
    assert len(tuned.problems) == 1
    assert "a pass within another pass" in tuned.problems[0]


def test_a_pass_that_the_script_leaves_early_keeps_no_workers_from_staying(run):
    script = """
    loader = DataLoader(Data(160, 0.0), 4, num_workers=1, shuffle=True)
    pids = set()
    def few():
        for n, batch in enumerate(loader):
            if n == 20: break
            yield batch
            pids.update(each.pid for each in getattr(loader, "_iterator").__dict__["_workers"])
    train(few, passes=4)
    print("started", len(pids))
    """
    left = script.replace('pids.update(each.pid for each in getattr(loader, "_iterator")', "")
    left = left.replace('.__dict__["_workers"])', "")
    found = run(script, start=FOUR_THAT_STAY)
    assert found.seen == run(left, None).seen
    assert "started 4\n" in found.log
    assert not found.problems


def test_a_staying_worker_that_dies_between_two_passes_is_replaced(run):
    script = """
    loader = DataLoader(Data(40, 0.0), 4, shuffle=True, num_workers=1)
    def kill(epoch):
        if epoch == 3 and loader._iterator is not None:
            worker = loader._iterator._workers[0]
            worker.kill()
            worker.join()
    train(loader, passes=6, before=kill)
    """
    found = run(script, start=FOUR_THAT_STAY)
    assert found.seen == run(script, None).seen
    assert found.stays == ["True"] * 6


EAGER = """
class Batches:
    def __len__(self): return 40
    def __iter__(self): return iter(torch.randperm(160).view(40, 4).tolist())
train(DataLoader(Data(160, 0.0), batch_sampler=Batches(), num_workers={own}), passes=4)
"""


def test_a_sampler_that_draws_at_once_draws_as_in_the_script(run):
    script = EAGER.format(own=1)
    found = run(script, start=FOUR_THAT_STAY)
    assert found.seen == run(script, None).seen
    assert found.stays[1:] == ["True"] * 3
    left = run(EAGER.format(own=0), from_zero=True, workers=2)
    assert left.passes == [0] * 4
    assert "its sampler" in left.problems[0]


COLLATES = """
class Collate:
    factor = 1
    def __call__(self, items): return torch.tensor(items) * self.factor
    def collate(self, items): return self(items)
collate = Collate()
def change(epoch): collate.factor = epoch + 1
train(DataLoader(Data(40, 0.0), 4, shuffle=True, num_workers=1, collate_fn={how}), 5, change)
"""
REPLACED = """
import numpy
class Items(Data):
    def __getitem__(self, n): return int(self.order[n])
data = Items(40)
def change(epoch):
    data.order = None
    data.order = numpy.arange(40) + 1000 * epoch
train(DataLoader(data, 4, num_workers=1), passes=5, before=change)
"""


@pytest.mark.parametrize(
    "script",
    [COLLATES.format(how="collate"), COLLATES.format(how="collate.collate"), REPLACED],
)
def test_workers_that_stay_see_what_else_the_script_changes(run, script):
    assert run(script, start=FOUR_THAT_STAY).seen == run(script, None).seen


@pytest.mark.parametrize("over", ["Subset({}, range(40))", "ConcatDataset([{}])"])
def test_a_data_set_that_asks_for_its_worker_within_another_one_is_found(run, over):
    data = over.format("Shard(40)")
    script = f"""
    class Shard(Data):
        def __getitem__(self, n): return n * get_worker_info().num_workers
    train(DataLoader(torch.utils.data.{data}, 4, shuffle=True, num_workers=2), passes=2)
    """
    found = run(script)
    assert found.passes == [2, 2]
    assert "its data set asks" in found.problems[0]


def test_a_shuffled_loader_before_the_training_gets_its_own_number_back(run):
    script = """
    other = DataLoader(Data(40, 0.0), 4, shuffle=True, num_workers=1)
    def look(epoch):
        for batch in other: pass
        print("other", other.num_workers, flush=True)
    train(DataLoader(Data(160, 0.0), 4, shuffle=True, num_workers=4), passes=2, before=look)
    """
    found = run(script)
    assert found.passes[0] == 4
    assert re.findall("^other (.*)", found.log, re.MULTILINE) == ["1", "1"]
    assert found.seen == run(script, None).seen


def test_a_thread_that_reads_the_loader_is_measured_by_nobody(run):
    script = """
    import threading, queue
    loader = DataLoader(Data(160, 0.0), 4, shuffle=True, num_workers=1)
    for epoch in range(3):
        batches, iterator = queue.Queue(2), iter(loader)
        def read():
            for batch in iterator: batches.put(batch)
            batches.put(None)
        threading.Thread(target=read, daemon=True).start()
        while batches.get() is not None:
            optimizer.zero_grad(); layer(torch.ones(1, 1)).sum().backward(); optimizer.step()
        print("pass", loader.num_workers, flush=True)
    """
    found = run(script)
    assert found.passes == [1, 1, 1]
    assert not found.measured
    assert "a thread of the script" in found.problems[0]


def test_a_pass_that_never_ends_is_told_once(run):
    script = """
    class Repeat:
        def __init__(self, sampler): self.sampler = sampler
        def __len__(self): return len(self.sampler)
        def __iter__(self):
            while True: yield from iter(self.sampler)
    loader = DataLoader(Data(40, 0.0), 4, shuffle=True, num_workers=1)
    vars(loader)["batch_sampler"] = Repeat(loader.batch_sampler)
    iterator = iter(loader)
    train(lambda: (next(iterator) for _ in range(len(loader))), passes=3)
    """
    (problem,) = run(script).problems
    assert "never ends" in problem


def test_an_iterator_that_is_kept_after_its_last_batch_is_no_pass(run):
    script = """
    import itertools
    loader, kept = DataLoader(Data(120, 0.015), 4, shuffle=True, num_workers=1), []
    def make():
        kept.append(iter(loader))
        return itertools.islice(kept[-1], len(loader))
    def before(epoch):
        if epoch: print("pass", loader.num_workers, flush=True)
    train(make, passes=4, before=before)
    """
    found = run(script)
    assert found.passes == [1, 2, 4]
    assert not found.problems
    assert found.seen == run(script, None).seen
