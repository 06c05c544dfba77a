"""A batch size that changes in real trainings: ranks on gloo, DDP, loaders with workers."""

from __future__ import annotations

import json
import os
import textwrap

import pytest

from tests.forks import torch_forks
from tests.worker.rank import Rank
from zeusrun.sidecar.events import Adapted, Observed

PREAMBLE = """
import os
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset
import zeusrun

torch.set_num_threads(1)
torch.manual_seed(0)
if "MASTER_PORT" in os.environ:
    distributed.init_process_group("gloo")
run = zeusrun.current()
COUNT = 103
inputs = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(1))
data = TensorDataset(inputs, inputs.sum(1), torch.arange(COUNT))
network = nn.Linear(4, 1)
if distributed.is_initialized():
    network = DistributedDataParallel(network)

def gather(value):
    found = [value] * run.world_size
    if distributed.is_initialized():
        distributed.all_gather_object(found, value)
    return found

def train(loader, optimizer, epochs=2, done=0):
    "Train; print the samples of each step over all ranks, and whether each sample came once."
    for epoch in run.epochs(default=epochs + done, done=done):
        seen, steps, step = [], [], 0
        for batch, wanted, numbers in loader:
            loss = (network(batch).squeeze(1) - wanted).square().mean() * loader.weight
            if loader.weight == 1:
                loss.backward()
            else:
                with loader.sync(network):
                    loss = (network(batch).squeeze(1) - wanted).square().mean() * loader.weight
                    loss.backward()
            seen += numbers.tolist()
            step += len(numbers)
            if loader.is_step:
                optimizer.step()
                optimizer.zero_grad()
                steps.append(step)
                step = 0
        everyone = gather(seen)
        once = sorted(sum(everyone, [])) == list(range(COUNT))
        print(epoch, [sum(each) for each in zip(*gather(steps), strict=True)], once)
    weights = gather([p.detach().flatten().tolist() for p in network.parameters()])
    assert all(each == weights[0] for each in weights)
    print("weights", " ".join(f"{w:.6f}" for p in weights[0] for w in p))
"""

PLAN = {
    "policies": ["schedule"],
    "interval": 1,
    "unit": "epoch",
    "minimum": 4,
    "maximum": 1024,
    "growth": 64,
    "schedule": [],
    "per_device_max": None,
    "learning_rate": "none",
}
SGD = "train(run.loader(data, 5), torch.optim.SGD(network.parameters(), 0.05), {epochs})"


@pytest.fixture
def train(tmp_path):
    """Run ranks on a script and the plan of a job; return the run and what rank 0 printed."""
    rank = Rank(tmp_path / "run")

    def start(  # noqa: PLR0917
        script, plan=(), ranks=2, batch_size=32, policy="", fails=False, parts=(), **environment
    ):
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE + textwrap.dedent(script))
        (tmp_path / "mine.py").write_text(textwrap.dedent(policy))
        shared = {
            "ZEUSRUN_BATCH_SIZE": str(batch_size),
            "ZEUSRUN_MAX_EPOCHS": "",
            **environment,
        }
        if plan is not None:
            parts = {**dict(parts), "adapt": {**PLAN, **dict(plan)}}
        shared["ZEUSRUN_PARTS"] = json.dumps(dict(parts))
        logs = rank.run_dir / "logs"
        for log in logs.iterdir():
            log.unlink()
        (rank.run_dir / "metrics.jsonl").unlink(missing_ok=True)

        codes, logs = rank.run_together(path, world_size=ranks, **shared)
        assert any(codes) == fails, logs
        return rank, logs[0].splitlines()

    return start


def changes(rank):
    return [
        (e.epoch, e.step, e.batch_size)
        for e in rank.events
        if isinstance(e, Adapted) and e.problem is None
    ]


def problems(rank):
    return [e.problem for e in rank.events if isinstance(e, Adapted) and e.problem is not None]


# Asks for another size after every step, in the middle of epochs.
RESTLESS = """
class Restless:
    def after_step(self, seen):
        return {32: 8, 8: 20, 20: 32}[seen.batch_size]
"""


@pytest.mark.parametrize(
    "options",
    [
        pytest.param("", id="no workers", marks=pytest.mark.long),
        pytest.param("num_workers=2", id="workers", marks=pytest.mark.long),
        pytest.param(
            "num_workers=1, persistent_workers=True, prefetch_factor=4", id="workers that stay"
        ),
    ],
)
def test_every_sample_comes_once_an_epoch_across_changes(train, options):
    script = f"train(run.loader(data, 5, {options}), torch.optim.SGD(network.parameters(), 0.05))"
    plan = {"policies": ["mine:Restless"], "interval": 2, "unit": "step"}
    rank, lines = train(script, plan, policy=RESTLESS)
    # Two steps of each, the last ones with what is left; a decision at an epoch's end waits.
    assert lines[:2] == [f"{epoch} [32, 32, 8, 8, 20, 3] True" for epoch in (1, 2)]
    sizes = [(1, 0, 32), (1, 2, 8), (1, 4, 20), (2, 6, 32), (2, 8, 8), (2, 10, 20)]
    assert changes(rank) == sizes
    assert len([e for e in rank.events if isinstance(e, Observed) and e.rank == 0]) <= 2


@pytest.mark.parametrize(
    ("ranks", "batch_size"), [(1, 32), pytest.param(3, 33, marks=pytest.mark.long)]
)
def test_every_sample_comes_once_on_any_number_of_ranks(train, ranks, batch_size):
    plan = {"schedule": [[2, 4 * ranks]]}
    _, lines = train(SGD.format(epochs=2), plan, ranks, batch_size)
    assert [line.endswith("True") for line in lines[:2]] == [True, True]
    assert f"[{4 * ranks}, " in lines[1]


def test_only_the_training_of_an_epoch_counts(train):
    """Evaluation with ``run.loader``, a second pass, and another loader beside decide nothing."""
    script = """
    loader, other = run.loader(data, 5), run.loader(data, 5, shuffle=False)
    for epoch in run.epochs(default=3):
        with torch.no_grad():
            before = sum(len(batch) for batch, _, _ in other)
        next(iter(loader))
        sizes = [(len(a), len(b)) for (a, _, _), (b, _, _) in zip(loader, other)]
        after = sum(1 for _ in loader)
        print(epoch, sizes, before, after)
    """
    policy = "class Twice:\n    def before_epoch(self, seen): return 2 * seen.batch_size\n"
    rank, lines = train(script, {"policies": ["mine:Twice"], "growth": 2}, policy=policy)
    assert changes(rank) == [(1, 0, 64), (2, 2, 128), (3, 3, 256)]
    assert lines[:2] == ["1 [(32, 32), (20, 20)] 52 2", "2 [(52, 52)] 52 1"]


def test_a_batch_size_that_the_data_do_not_fill_is_not_used(train):
    """With drop_last, it would leave no step."""
    script = """
    for epoch in run.epochs(default=2):
        print(epoch, [len(batch) for batch, _, _ in run.loader(data, 5, drop_last=True)])
    """
    rank, lines = train(script, {"schedule": [[2, 256]]})
    assert lines == ["1 [16, 16, 16]", "2 [51]"]
    (problem,) = problems(rank)
    assert problem.startswith(
        "the batch size stays below 256, because the data are fewer than that"
    )


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            "for _ in run.loader(range(40 - 4 * run.rank), 5): pass",
            "rank 0 has 40 samples for run.loader, and rank 1 has 36",
        ),
        pytest.param(
            "for _ in run.epochs(9, done=2 - run.rank): next(iter(run.loader(data, 5)))",
            "rank 0 has 3 for the first epoch, and rank 1 has 2",
            marks=pytest.mark.long,
        ),
    ],
    ids=["other data", "another epoch"],
)
def test_ranks_that_disagree_end_with_an_error_before_they_train(train, script, why):
    rank, _ = train(script, fails=True)
    assert f"ValueError: zeusrun: {why}: give every rank the same data" in rank.log("0")
    assert f"ValueError: zeusrun: {why}" in rank.log("1")


def test_a_schedule_holds_from_its_epochs_on_however_seldom_a_policy_would_decide(train):
    rank, _ = train(SGD.format(epochs=3), {"schedule": [[2, 16], [3, 64]], "interval": 5})
    assert changes(rank) == [(1, 0, 32), (2, 4, 16), (3, 11, 64)]


def test_an_unchanged_batch_size_trains_as_without_adapt(train):
    _, adapting = train(SGD.format(epochs=2))
    _, lines = train(SGD.format(epochs=2), plan=None)
    assert adapting == lines


def test_accumulation_gives_the_same_weights(train):
    plan = {"schedule": [[2, 48]]}
    _, whole = train(SGD.format(epochs=2), plan)
    split = {"ZEUSRUN_MICRO_BATCH_SIZE": "8", "ZEUSRUN_ACCUMULATION_STEPS": "2"}
    _, lines = train(SGD.format(epochs=2), {**plan, "per_device_max": 8}, **split)
    assert lines[-2:] == whole[-2:]  # steps of 48 come as three micro-batches of 8 on each rank
    assert lines[-2] == "2 [48, 48, 7] True"


RESUMES = "train(run.loader(data, 5), torch.optim.SGD(network.parameters(), 0.05), 1, {done})"
ONCE = """
class Once:
    def after_step(self, seen):
        return {2: 16, 6: 64}.get(seen.step)
"""


def test_a_restart_continues_with_the_batch_size_it_had(train):
    plan = {"policies": ["mine:Once"], "interval": 2, "unit": "step"}
    _, lines = train(RESUMES.format(done=0), plan, policy=ONCE)
    assert lines[0] == "1 [32, 32, 16, 16, 7] True"
    rank, lines = train(RESUMES.format(done=1), plan, policy=ONCE)
    assert lines[0] == "2 [16, 16, 64, 7] True"  # the state is that of step 4
    assert changes(rank) == [(2, 4, 16), (2, 6, 64)]
    _, lines = train(RESUMES.format(done=4), plan, policy=ONCE)
    assert lines[0] == "5 [64, 39] True"
    # Without a checkpoint it begins anew.
    rank, lines = train(RESUMES.format(done=0), plan, policy=ONCE)
    assert lines[0] == "1 [32, 32, 16, 16, 7] True"


@pytest.mark.long  # two trainings
def test_a_restart_after_out_of_memory_grows_no_further(train):
    plan = {"policies": ["mine:Once"], "interval": 2, "unit": "step"}
    policy = "class Once:\n    def after_step(self, seen): return 2 * seen.batch_size\n"
    script = RESUMES.format(done="run._restart") + "\nif run._restart == 0: raise MemoryError"
    script = "run._restart = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n" + script
    _, lines = train(script, plan, policy=policy, fails=True, TORCHELASTIC_RESTART_COUNT="0")
    assert "1 [32, 32, 39] True" in lines  # the traceback may come first
    rank, lines = train(script, plan, policy=policy, TORCHELASTIC_RESTART_COUNT="1")
    assert lines[0] == "2 [32, 32, 32, 7] True"
    assert problems(rank)[0].startswith("the batch size grows to 32 at most from here on")


@pytest.mark.long  # two trainings
def test_a_look_at_a_batch_before_the_loop_is_no_epoch(train):
    look = "loader = run.loader(data, 16); next(iter(loader))\n"
    sgd = "torch.optim.SGD(network.parameters(), 0.05)"
    plan = {"schedule": [[2, 64]]}
    train(f"{look}train(loader, {sgd}, 2)", plan)
    rank, printed = train(f"{look}train(loader, {sgd}, 2)", plan)  # without a checkpoint
    assert printed[0].startswith("1 [32, 32, 32, 7]")
    assert changes(rank)[-1] == (2, 4, 64)


@pytest.mark.long  # two trainings
def test_a_pass_within_a_pass_leaves_the_outer_one_as_it_is(train):
    script = """
    loader = run.loader(data, 8, num_workers=1)
    for epoch in run.epochs(default=2):
        seen = []
        for number, (batch, _, numbers) in enumerate(loader):
            seen += numbers.tolist()
            if number == 1:
                with torch.no_grad():
                    inner = [n for _, _, few in loader for n in few.tolist()]
                next(iter(loader))
        print(epoch, loader.weight, sorted(sum(gather(seen), [])) == list(range(COUNT)))
        print(sorted(sum(gather(inner), [])) == list(range(COUNT)))
    """
    _, printed = train(script, {"schedule": [[2, 64]]}, batch_size=16)
    assert printed == ["1 1.0 True", "True", "2 1.0 True", "True"]


@pytest.mark.long  # as the restart above, three trainings more
def test_a_restart_of_a_loop_without_epoch_numbers_continues_too(train):
    plan = {"policies": ["mine:Once"], "interval": 2, "unit": "step"}
    loop = """
    sizes = []
    for batch, _, _ in run.loader(data, 5):
        network(batch).sum().backward()
        sizes.append(sum(gather(len(batch))))
    print(sizes)
    """
    _, lines = train(loop, plan, policy=ONCE)
    assert lines == ["[32, 32, 16, 16, 7]"]
    rank, lines = train(loop, plan, policy=ONCE)
    assert lines == ["[16, 16, 64, 7]"]
    rank, lines = train(loop, {**plan, "minimum": 20, "maximum": 48}, policy=ONCE)
    assert lines == ["[48, 48, 7]"]  # the job file has changed meanwhile
    assert changes(rank) == [(1, 6, 48)]
    (rank.run_dir / "adapt.json").write_text("[damaged")
    rank, lines = train(loop, plan, policy=ONCE)
    assert lines == ["[32, 32, 16, 16, 7]"]
    assert problems(rank)[0].startswith("the batch size starts again at 32, because adapt.json")


def test_the_learning_rate_follows_and_a_scheduler_keeps_the_unchanged_one(train):
    script = """
    optimizer = torch.optim.AdamW(network.parameters(), 0.01)
    rates = []
    optimizer.register_step_pre_hook(lambda *_: rates.append(
        round(optimizer.param_groups[0]["lr"], 6)))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    loader = run.loader(data, 5)
    for epoch in run.epochs(default=2):
        for batch, wanted, _ in loader:
            network(batch).sum().backward()
            optimizer.step()
        schedule.step()
        print(epoch, schedule.get_last_lr(), rates[-1])
    """
    plan = {"schedule": [[2, 64]], "learning_rate": "sqrt"}
    rank, lines = train(script, plan)
    assert lines == [
        "1 [0.005] 0.01",
        f"2 [0.0025] {0.005 * 2**0.5:.6f}",
    ]
    (first, change) = [e for e in rank.events if isinstance(e, Adapted)]
    assert first.learning_rate is None
    assert change.learning_rate == pytest.approx(0.005 * 2**0.5)


@pytest.mark.long  # two trainings
def test_a_step_that_raises_and_an_optimizer_that_contains_another_leave_the_rate(train):
    script = """
    from torch.distributed.optim import ZeroRedundancyOptimizer
    sgd = torch.optim.SGD(network.parameters(), 0.01)
    zero = ZeroRedundancyOptimizer(network.parameters(), torch.optim.SGD, lr=0.02)
    def fail():
        print("within", sgd.param_groups[0]["lr"])
        raise RuntimeError("closure")
    for epoch in run.epochs(default=2):
        for batch, wanted, _ in run.loader(data, 32):
            (network(batch).squeeze(1) - wanted).square().mean().backward()
            try:
                sgd.step(fail)
            except RuntimeError:
                zero.step()
            print(epoch, sgd.param_groups[0]["lr"], zero.param_groups[0]["lr"])
    """
    _, printed = train(script, {"schedule": [[2, 64]], "learning_rate": "linear"})
    assert {line for line in printed if line.startswith("within")} == {"within 0.01", "within 0.02"}
    assert {line.partition(" ")[2] for line in printed if line[0].isdigit()} == {"0.01 0.02"}


def test_the_observed_rate_is_the_one_of_the_script(train):
    script = "train(run.loader(data, 4), torch.optim.SGD(network.parameters(), 0.05), 2)"
    rank, _ = train(script, {"schedule": [[1, 16]], "learning_rate": "linear"}, batch_size=8)
    rates = {e.learning_rates for e in rank.events if isinstance(e, Observed)}
    assert rates == {(0.05,)}


def test_the_noise_scale_decides_on_all_ranks_alike(train):
    """The labels have noise, so the noise scale rises while the gradient vanishes."""
    script = """
    COUNT = 800
    inputs = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(1))
    wanted = inputs.sum(1) + 2 * torch.randn(COUNT, generator=torch.Generator().manual_seed(2))
    data = TensorDataset(inputs, wanted, torch.arange(COUNT))
    train(run.loader(data, 4), torch.optim.SGD(network.parameters(), 0.003), 9)
    """
    plan = {"policies": ["noise-scale"], "growth": 2, "maximum": 64}
    parts = {"watch": {"noise_scale": {"interval": 1}}}
    rank, lines = train(script, plan, batch_size=8, parts=parts)
    assert all(line.endswith("True") for line in lines[:9])
    assert changes(rank)[0] == (1, 0, 8)
    assert all(size in range(8, 65, 2) for _, _, size in changes(rank))
    assert 12 <= changes(rank)[-1][2] <= 64
    assert problems(rank) == []


def test_a_class_that_fails_leaves_the_training_as_it_was(train):
    policy = """
    class Bad:
        def before_epoch(self, seen):
            raise KeyError("x")
    """
    rank, lines = train(SGD.format(epochs=2), {"policies": ["mine:Bad"]}, policy=policy)
    assert lines[:2] == [f"{epoch} [32, 32, 32, 7] True" for epoch in (1, 2)]
    (problem,) = problems(rank)
    assert problem.startswith("before_epoch of mine:Bad raised KeyError: 'x'; the batch size stays")


def test_a_class_that_cannot_be_created_ends_the_run_before_any_step(train):
    rank, _ = train(SGD.format(epochs=1), {"policies": ["mine:Missing"]}, fails=True)
    assert "adapt.batch_size.policy mine:Missing cannot be used" in rank.log()
    assert not any(isinstance(event, Observed) for event in rank.events)


def test_the_methods_of_several_classes_are_called_in_order_and_after_them_in_reverse(train):
    policy = """
    class A:
        def __getattr__(self, name):
            return lambda seen: print(type(self).__name__, name, seen.epoch, seen.samples)
    class B(A): pass
    """
    plan = {"policies": ["mine:A", "mine:B"]}
    _, lines = train(SGD.format(epochs=1), plan, batch_size=52, policy=policy)
    step = ["A before_step {}", "B before_step {}"], ["B after_step {}", "A after_step {}"]
    expected = [f"{c} {m} 1 0" for m in ("before_train", "before_epoch") for c in "AB"]
    for before, after in ((0, 52), (52, 103)):
        expected += [text.format(f"1 {before}") for text in step[0]]
        expected += [text.format(f"1 {after}") for text in step[1]]
    expected += [f"{c} after_epoch 1 103" for c in "BA"]
    assert [line for line in lines if line[0] in "AB"] == [
        *expected,
        *(f"{c} after_train 1 103" for c in "BA"),
    ]


def test_ranks_without_a_process_group_keep_their_batch_size(train):
    script = "distributed.destroy_process_group(); network = network.module\n" + SGD.format(
        epochs=2
    )
    rank, _ = train(
        script.replace("train(", "gather = lambda v: [v]; train("), {"schedule": [[2, 64]]}
    )
    (problem,) = problems(rank)
    assert "no process group" in problem


def test_data_that_the_ranks_cannot_share_are_refused(train):
    script = """
    import dataclasses
    run._environment.plan = dataclasses.replace(run._environment.plan, batch_size=None)
    refused = ({"in_order": False}, {"sampler": None}, {"batch_size": 0})
    for data, options in (([1], {}), (iter([]), {}), *(([1] * 9, o) for o in refused)):
        try:
            run.loader(data, **{"batch_size": 8, **options})
        except (TypeError, ValueError) as error:
            print(type(error).__name__, error)
    """
    _, lines = train(script)
    assert lines == [
        "ValueError zeusrun: run.loader has 1 samples, fewer than 2 ranks",
        "TypeError zeusrun: run.loader needs a dataset with a length",
        "ValueError zeusrun: run.loader cannot have in_order=False: it counts its batches",
        "ValueError zeusrun: run.loader divides the samples itself, without a sampler",
        "ValueError zeusrun: run.loader needs a batch size of 1 or more, not 0",
    ]


@pytest.mark.long  # it imports torch
def test_a_loader_works_outside_zeusrun(tmp_path):
    (tmp_path / "script.py").write_text(PREAMBLE + SGD.format(epochs=1))
    done = torch_forks().run(["script"], {"PATH": os.environ["PATH"]}, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"1 {[5] * 20 + [3]} True")
