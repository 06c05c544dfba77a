"""Other numbers of workers for real loaders of torch: the same samples in the same order."""

from __future__ import annotations

import json
import re
import textwrap

import pytest

from tests.loader.rank.running import DIES, FOUR, FOUR_THAT_STAY, PREAMBLE, TUNE
from tests.worker.rank import Rank
from zeusrun.sidecar.events import LoaderWorkers

LOADERS = {
    "shuffled": "DataLoader(Data(), 4, shuffle=True, num_workers=1)",
    "not shuffled": "DataLoader(Data(), 4, num_workers=1)",
    "of a generator": "DataLoader(Data(), 4, shuffle=True, num_workers=1, "
    "generator=torch.Generator().manual_seed(5))",
    "workers that stay": "DataLoader(Data(), 4, shuffle=True, num_workers=1, "
    "persistent_workers=True)",
    "weighted": "DataLoader(Data(), 4, num_workers=1, "
    "sampler=torch.utils.data.WeightedRandomSampler(torch.ones(160), 160))",
    "without batches": "DataLoader([torch.tensor([n]) for n in range(160)], None, num_workers=1)",
    "short passes": "DataLoader(Data(40, 0.001), 4, shuffle=True, num_workers=1)",
}


@pytest.mark.parametrize("name", LOADERS)
def test_the_order_of_the_samples_is_that_of_the_script(run, name):
    script = f"train({LOADERS[name]}, passes=6)"
    tuned, plain = run(script), run(script, None)
    assert tuned.seen == plain.seen
    assert len(set(tuned.passes)) > 1, tuned.log
    assert not tuned.problems


def test_it_finds_the_number_that_is_fast_enough(run):
    found = run("train(DataLoader(Data(120, 0.02), 4, shuffle=True, num_workers=1), passes=5)")
    assert found.passes[:3] == [1, 2, 4]
    assert found.passes[-1] == 4
    assert found.measured >= {1, 2, 4}
    before, after = (next(e for e in found.events if e.workers == n and e.step_s) for n in (1, 4))
    assert before.step_s > 1.5 * after.step_s
    assert before.wait > 0.8


def test_the_first_pass_has_the_number_of_an_earlier_run(run):
    script = "train(DataLoader(Data(120, 0.0), 4, shuffle=True, num_workers=1), passes=3)"
    assert run(script, start=FOUR).passes == [4, 4, 4]
    assert run(script, start=FOUR_THAT_STAY).stays == ["True"] * 3
    assert run(script, workers=2).passes == [2, 2, 2]


def test_a_loader_without_workers_gets_some_only_if_it_may(run):
    script = "train(DataLoader(Data(120, 0.01), 4, shuffle=True), passes=3)"
    left, tuned = run(script), run(script, from_zero=True)
    assert left.passes == [0] * 3
    assert "{workers: tune, from_zero: true}" in left.problems[0]
    assert "{workers: 3, from_zero: true}" in run(script, workers=3).problems[0]
    assert tuned.passes[:3] == [1, 2, 4]
    assert tuned.seen == run(script, None).seen


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            """
            class Stream(IterableDataset):
                def __iter__(self): return iter(torch.arange(80.0))
            train(DataLoader(Stream(), 4, num_workers=2), passes=3)
            """,
            "iterable",
        ),
        (
            """
            def begin(worker): torch.manual_seed(worker + get_worker_info().num_workers)
            train(DataLoader(Data(), 4, shuffle=True, num_workers=2, worker_init_fn=begin), 3)
            """,
            "worker_init_fn",
        ),
        (
            """
            def begin(n, worker): torch.manual_seed(worker + n)
            class Shard(Data):
                def __getitem__(self, n): return n + get_worker_info().num_workers
            train(DataLoader(Shard(), 4, shuffle=True, num_workers=2), 3)
            """,
            "its data set asks",
        ),
        (
            "train(DataLoader(Data(), 4, shuffle=True, num_workers=2, in_order=False), 3)",
            "in_order",
        ),
    ],
)
def test_a_loader_whose_data_depend_on_the_number_is_left_alone(run, script, why):
    found = run(script)
    assert set(found.passes) == {2}
    assert len(found.problems) == 1
    assert why in found.problems[0]


def test_a_worker_init_fn_that_only_makes_seeds_may_stay(run):
    script = """
    def begin(worker): torch.manual_seed(worker)
    train(DataLoader(Data(120, 0.02), 4, shuffle=True, num_workers=1, worker_init_fn=begin), passes=4)
    """
    assert run(script).passes[:3] == [1, 2, 4]


def test_the_loader_of_an_evaluation_stays_as_it_is(run):
    script = """
    other = DataLoader(Data(40), 4, num_workers=1)
    def evaluate(epoch):
        for batch in other: pass
        print("other", other.num_workers, flush=True)
    train(DataLoader(Data(120, 0.02), 4, shuffle=True, num_workers=1), passes=5, before=evaluate)
    """
    found = run(script)
    assert found.passes[:3] == [1, 2, 4]
    assert re.findall(r"^other (\d)", found.log, re.MULTILINE) == ["1"] * 5


def test_a_loader_that_is_built_within_a_pass_stays_as_it_is(run):
    script = """
    def read(n):
        if n != 10: return
        other = DataLoader(Data(8), 4, shuffle=True, num_workers=1)
        for batch in other: pass
        print("other", other.num_workers, flush=True)
    class Batches:
        def __init__(self, loader): self.loader = loader
        num_workers = property(lambda self: self.loader.num_workers)
        persistent_workers = False
        def __iter__(self):
            for n, batch in enumerate(self.loader):
                read(n % 20)
                yield batch
    train(Batches(DataLoader(Data(160, 0.015), 4, shuffle=True, num_workers=1)), passes=3)
    """
    found = run(script)
    assert found.passes[:3] == [1, 2, 4]
    assert set(re.findall(r"^other (\d)", found.log, re.MULTILINE)) == {"1"}
    assert found.seen == run(script, None).seen


def test_a_loader_for_each_pass_is_tuned_too(run):
    script = """
    made = []
    def make():
        made.append(DataLoader(Data(120, 0.02), 4, shuffle=True, num_workers=1))
        return iter(made[-1])
    def before(epoch):
        if made: print("pass", made.pop().num_workers, flush=True)
    train(make, passes=6, before=before)
    """
    assert run(script).passes[:3] == [1, 2, 4]


def test_workers_that_stay_see_what_the_script_changes_between_passes(run):
    script = """
    data = Data(16, 0.0)
    def change(epoch):
        if epoch > 30: data.epoch = epoch
    train(DataLoader(data, 4, num_workers=1), passes=40, before=change)
    """
    found = run(script, max_workers=1)
    assert "True" in found.stays[:30]
    assert found.seen == run(script, None).seen


@pytest.mark.parametrize(
    ("own", "also", "by"),
    [
        (1, "", "SIGKILL"),
        (1, ", persistent_workers=True", "SIGKILL"),
        (0, "", "SIGKILL"),
        (2, ", prefetch_factor=5", "SIGBUS"),
    ],
)
def test_a_worker_that_dies_ends_neither_the_run_nor_the_order(run, own, also, by):
    script = DIES.format(more=max(1, own), own=own, also=also, signal=by)
    found = run(script, from_zero=True, max_workers=4)
    plain = run(script, None)
    assert found.seen == plain.seen
    assert found.passes[-1] == own
    (died,) = [each for each in found.events if each.died]
    assert died.workers > own
    assert "one died" in found.problems[0]


def test_a_worker_of_the_scripts_own_number_ends_the_run_as_ever(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(PREAMBLE + DIES.format(more=0, own=1, also="", signal="SIGKILL"))
    rank = Rank(tmp_path / "run")
    code, log = rank.run_forked(path, ZEUSRUN_PARTS=json.dumps({"loader": TUNE}))
    assert code
    assert "Error" in log  # torch names the worker, or the pipe that broke


def test_ranks_of_a_host_have_the_same_number_in_each_pass(tmp_path):
    path = tmp_path / "script.py"
    script = """
    import torch.distributed as dist
    dist.init_process_group("gloo")
    layer = torch.nn.parallel.DistributedDataParallel(layer)
    data = Data(400, 0.004)
    sampler = torch.utils.data.distributed.DistributedSampler(data)
    train(DataLoader(data, 4, sampler=sampler, num_workers=1), passes=8, before=sampler.set_epoch)
    """
    path.write_text(PREAMBLE + textwrap.dedent(script))
    rank = Rank(tmp_path / "run")
    logs = rank.run_all(path, ZEUSRUN_PARTS=json.dumps({"loader": TUNE}))
    first, second = (re.findall(r"^pass (\d+)", log, re.MULTILINE) for log in logs)
    assert first == second
    assert first[:3] == ["1", "2", "4"]
    assert (tmp_path / "run" / "loader.json").exists()
    events = [each for each in rank.events if isinstance(each, LoaderWorkers)]
    assert {each.workers for each in events if each.step_s is not None} >= {1, 2, 4}
    begun = [f"{each.workers} {each.stays}" for each in {e.t: e for e in events}.values()]
    arms = re.findall(r"^pass (.*)$", logs[0], re.MULTILINE)
    assert begun == [arm for arm, before in zip(arms, ["", *arms], strict=False) if arm != before]


def test_data_of_which_other_processes_get_no_copy_are_read_as_in_the_script(run):
    script = """
    torch.multiprocessing.set_start_method("spawn", force=True)
    train(DataLoader(Data(), 4, shuffle=True), passes=2)
    """
    found = run(script, from_zero=True)
    assert found.passes == [0, 0]
    assert found.seen == run(script, None).seen
    assert "workers could not start" in found.problems[0]


def test_workers_that_cannot_start_cost_nothing_of_the_order(run):
    script = """
    import torch.utils.data.dataloader as module
    class Full:
        def __getattr__(self, name): return getattr(torch.multiprocessing, name)
        started = 0
        def Process(self, *args, **options):
            Full.started += 1
            if Full.started == 3: raise OSError(12, "Cannot allocate memory")
            return torch.multiprocessing.Process(*args, **options)
    loader = DataLoader(Data(), 4, shuffle=True, num_workers=1)
    if os.environ.get("ZEUSRUN_PARTS"):
        vars(loader)["_DataLoader__multiprocessing_context"] = Full()
    train(loader, passes=4)
    """
    found = run(script)
    assert found.seen == run(script, None).seen
    assert found.passes == [1, 1, 1, 1]
    assert "workers could not start: [Errno 12]" in found.problems[0]
