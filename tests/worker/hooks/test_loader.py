"""What is observed of DataLoaders, and what is handed to them, in this process and over torch."""

from __future__ import annotations

import os
import re
import textwrap

import pytest

from tests.forks import torch_forks
from tests.worker.rank import Rank
from zeusrun.sidecar.events import Applied, Asked, Ended, Observed

PREAMBLE = """
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

data = TensorDataset(torch.randn(100, 4), torch.zeros(100))
others = TensorDataset(torch.randn(40, 4), torch.zeros(40))
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), 0.25)

def step():
    optimizer.zero_grad()
    layer(torch.ones(1, 4)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def run(tmp_path):
    def start(script, **environment):
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE + textwrap.dedent(script))
        rank = Rank(tmp_path / f"run{len([*tmp_path.iterdir()])}")
        code, log = rank.run_forked(path, **environment)
        return rank, code, log

    return start


def observed(rank):
    return [(e.samples, e.batches) for e in rank.events if isinstance(e, Observed)]


READS_AHEAD = """
def ahead(loader):  # as accelerate's loaders do
    batches = iter(loader)
    now = next(batches)
    for then in batches:
        yield now, False
        now = then
    yield now, True

def train(count, accumulated, epochs=1):
    loader = DataLoader(torch.zeros(count), 8)
    for epoch in range(epochs):
        for number, (batch, last) in enumerate(ahead(loader), 1):
            if last or number % accumulated == 0: step()

"""


@pytest.mark.parametrize(
    ("loop", "seen"),
    [
        pytest.param(
            """
            for epoch in range(3):
                for batch in DataLoader(data, 16): step()
                for batch in DataLoader(others, 8): pass
            """,
            [(16, 1)],
            id="evaluation is not credited, nor the last batch",
        ),
        pytest.param(
            """
            for epoch in range(2):
                for number, batch in enumerate(DataLoader(data, 5)):
                    if number % 4 == 3: step()
            """,
            [(20, 4)],
            id="accumulation",
        ),
        pytest.param(
            """
            loader = DataLoader(data, 10, num_workers=2, persistent_workers=True)
            for epoch in range(2):
                for batch in loader: step()
            """,
            [(10, 1)],
            id="workers that stay",
        ),
        pytest.param(
            """
            for epoch in range(20):
                for batch in DataLoader(data, 512): step()
                for batch in DataLoader(others, 16): pass
            """,
            [(100, 1)],
            id="more than the data",
        ),
        pytest.param(
            "for epoch in range(3):\n    for batch in DataLoader(data, 60): step()",
            [(60, 1)],
            id="a step, and a smaller one",
        ),
        pytest.param(
            """
            loader = DataLoader(data, 24)
            for epoch in range(3):
                for number, batch in enumerate(loader, 1):
                    if number % 8 == 0 or number == len(loader): step()
            """,
            [(100, 5)],
            id="more accumulation than the data",
        ),
        pytest.param(
            """
            kept = [*DataLoader(data, 25)]
            for epoch in range(3):
                for batch in kept: step()
            """,
            [],
            id="batches that were drawn before",
        ),
        pytest.param(
            "for epoch in range(9):\n    for batch in DataLoader(data, batch_size=None): step()",
            [(None, 1)],
            id="no batches",
        ),
        pytest.param(
            """
            sizes = [list(range(n)) for n in (3, 9, 4, 12, 7, 30, 8, 5, 6)]
            for batch in DataLoader(data, batch_sampler=sizes): step()
            """,
            [(None, 1)],
            id="batches of many sizes",
        ),
        pytest.param(
            """
            for batch in DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 20, True)):
                step()
            """,
            [(20, 1)],
            id="a batch sampler",
        ),
        pytest.param(
            """
            class Batches(torch.utils.data.Dataset):  # as of DLRM
                def __len__(self): return 30
                def __getitem__(self, index): return torch.zeros(128, 4), [torch.zeros(3, 128)], torch.zeros(128)
            for batch in DataLoader(Batches(), 1, collate_fn=lambda items: items[0]): step()
            """,
            [(None, 1)],
            id="an item that is a whole batch",
        ),
        pytest.param(
            "for batch in DataLoader(data, 1): step()", [(1, 1)], id="batches of one sample"
        ),
        pytest.param(
            """
            class Stream(IterableDataset):
                def __iter__(self): return iter(range(60))
            for batch in DataLoader(Stream(), 6): step()
            """,
            [(6, 1)],
            id="a stream",
        ),
        pytest.param(
            """
            for size in (5, 10):
                for epoch in range(3):
                    for batch in DataLoader(data, size): step()
            """,
            [(5, 1), (10, 1)],
            id="it changes",
        ),
        pytest.param(
            """
            critic = torch.optim.SGD(torch.nn.Linear(4, 1).parameters(), 0.25)
            for batch in DataLoader(data, 10):
                step()
                critic.step()
            """,
            [(10, 1)],
            id="two optimizers",
        ),
        pytest.param("for _ in range(20): step()", [], id="no loader"),
        pytest.param(
            READS_AHEAD + "train(15, 4, epochs=9)", [(15, 2)], id="read ahead, and a single step"
        ),
        pytest.param(READS_AHEAD + "train(40, 4, epochs=9)", [], id="read ahead, and few steps"),
        pytest.param(
            READS_AHEAD
            + """
loader = DataLoader(torch.zeros(16), 8)
for epoch in range(2):
    for number, _ in enumerate(ahead(loader)):
        if (epoch, number) != (1, 1): step()
""",
            [],
            id="read ahead, and ended before the last step",
        ),
        pytest.param(READS_AHEAD + "train(40, 1)", [(8, 1)], id="read ahead"),
        pytest.param(READS_AHEAD + "train(64, 2)", [(16, 2)], id="read ahead and accumulation"),
        pytest.param(
            """
            for x, y in zip(DataLoader(data, 5), DataLoader(data, 10, sampler=[0] * 200)): step()
            """,
            [(None, 1)],
            id="two loaders at once",
        ),
        pytest.param(
            """
            class Odd(DataLoader):
                def __eq__(self, other): return True
            for batch in Odd(data, 10): step()
            """,
            [(10, 1)],
            id="a loader without a hash",
        ),
    ],
)
def test_the_samples_of_a_step_are_those_of_the_loader_that_feeds_it(run, loop, seen):
    rank, code, log = run(loop)
    assert code == 0, log
    assert observed(rank) == seen


def test_an_epoch_has_as_many_steps_as_its_loader_says(run):
    script = """
    class Stream(IterableDataset):
        def __iter__(self): return iter(range(60))
        def __len__(self): return 30
    import warnings
    warnings.simplefilter("error")  # torch warns of a stream that is longer than it once said
    for loader in DataLoader(Stream(), 6), DataLoader(data, 30), DataLoader(data, 30, drop_last=True):
        for epoch in range(9):
            for batch in loader: step()
    endless = RandomSampler(data, replacement=True, num_samples=10**9)
    for batch, _ in zip(DataLoader(data, 25, sampler=endless), range(9)): step()
    """
    rank, code, log = run(script)
    assert code == 0, log
    seen = [e for e in rank.events if isinstance(e, Observed)]
    assert [(e.data, e.steps_per_epoch) for e in seen] == [
        (30, None),
        (100, 4),
        (100, 3),
        (100, None),
    ]


@pytest.mark.parametrize(
    ("optimizer", "schedule", "rates"),
    [
        ("torch.optim.SGD(layer.parameters(), 0.5)", "", (0.5,)),
        (
            "torch.optim.SGD([{'params': [layer.weight], 'lr': 0.1}, {'params': [layer.bias]}], 0.5)",
            "for group in optimizer.param_groups: group['lr'] = 0.01 / (batch + 1)",
            (0.1, 0.5),
        ),
        (
            "torch.optim.SGD(layer.parameters(), 0.5); warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01)",
            "warm.step()",
            (0.5,),
        ),
    ],
    ids=["constant", "a schedule of its own", "torch's"],
)
def test_the_learning_rate_is_that_before_any_schedule(run, optimizer, schedule, rates):
    script = f"""
optimizer = {optimizer}
for batch, _ in enumerate(DataLoader(data, 5)):
    step()
    {schedule}
"""
    rank, code, log = run(script)
    assert code == 0, log
    (seen,) = [e.learning_rates for e in rank.events if isinstance(e, Observed)]
    assert set(rates) <= set(seen)


SAME = """
torch.manual_seed(0)
seen = []
for workers in (0, 2):
    loader = DataLoader(data, 16, shuffle=True, num_workers=workers)
    for x, _ in loader:
        seen.append(float(x.sum()))
        step()
    seen.append(len(loader))
print(seen, float(layer.weight.sum()))
"""


def test_a_script_does_the_same_with_and_without_the_hooks(run, tmp_path):
    _, code, log = run(f"import torch; torch.manual_seed(1); data = None\n{PREAMBLE}{SAME}")
    assert code == 0, log
    plain = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
    done = torch_forks().run(["-c", plain, str(tmp_path / "script.py")], dict(os.environ), tmp_path)
    assert (done.returncode, done.stderr + done.stdout) == (0, log)


APPLY = {"ZEUSRUN_BATCH_SIZE": "32", "ZEUSRUN_GIVEN_BATCH_SIZE": "16"}


def test_the_loader_that_was_built_with_the_defaults_share_gets_the_chosen_one(run):
    rank, code, log = run(
        """
        loader = DataLoader(data, batch_size=16, shuffle=True)
        checks = DataLoader(others, 16)
        for epoch in range(4):
            for batch in loader: step()
            for batch in checks: pass
        print(loader.batch_size, checks.batch_size)
        """,
        **APPLY,
    )
    assert code == 0, log
    assert log.splitlines()[-1] == "32 16"
    (applied,) = [event for event in rank.events if isinstance(event, Applied)]
    assert (applied.choice, applied.given, applied.chosen) == ("batch_size", 16, 32)
    assert applied.where.startswith("script.py:")
    assert observed(rank) == [(32, 1)]


SPLIT = """
from torch.utils.data import Subset, SubsetRandomSampler

class Base(DataLoader):
    def __init__(self, data, size, held_out):
        order = torch.randperm(len(data)).tolist()
        self.options = {"dataset": data, "batch_size": size}
        self.rest = SubsetRandomSampler(order[:held_out])
        super().__init__(sampler=SubsetRandomSampler(order[held_out:]), **self.options)
    def split(self): return DataLoader(sampler=self.rest, **self.options)

def build(data, **options): return DataLoader(data, 16, **options)

def train(loader):
    for batch in loader: step()

sets = {"train": data, "val": others}
parts = [range(60), range(60, 100)]
drawn = BatchSampler(RandomSampler(data), 16, True)
"""


@pytest.mark.parametrize(
    ("script", "sizes"),
    [
        pytest.param(
            "first = Base(data, 16, 20)\nsecond = first.split()\nfor _ in range(3): train(first)",
            [32, 16],
            id="two samplers over one dataset",
        ),
        pytest.param(
            "first, second = (build(data, sampler=SubsetRandomSampler(part)) for part in parts)",
            [32, 16],
            id="two samplers by one function",
        ),
        pytest.param(
            "loaders = {name: DataLoader(sets[name], 16, shuffle=True) for name in sets}\n"
            "first, second = loaders.values()",
            [32, 16],
            id="two datasets in one line",
        ),
        pytest.param(
            "first = DataLoader(data, 16, True)\nsecond = DataLoader(data, 16, True)",
            [32, 16],
            id="one dataset in two lines",
        ),
        pytest.param(
            "print(len(build(data, shuffle=True)))\nfirst = build(data, sampler=RandomSampler(data))\n"
            "second = build(others, shuffle=True)",
            [32, 16],
            id="by a function, and once for its length",
        ),
        pytest.param(
            "next(iter(DataLoader(others, 16, shuffle=True)))\n"
            "first = DataLoader(data, 16, shuffle=True)\nsecond = DataLoader(others, 16, True)",
            [32, 16],
            id="one that is gone before the first step",
        ),
        pytest.param(
            "sizes = []\n"
            "for fold in range(2):\n"
            "    first = build(Subset(data, range(50 * fold, 50 * fold + 50)), shuffle=True)\n"
            "    second = build(Subset(data, range(9 * fold)), sampler=[0] * 30)\n"
            "    train(first)\n"
            "    sizes.append((first.batch_size, second.batch_size))\n"
            "assert sizes == [(32, 16)] * 2, sizes",
            [32, 16],
            id="the next fold",
        ),
        pytest.param(
            "first, second = (DataLoader(each, 16, True) for each in (Subset(data, range(9)), others))\n"
            "for _ in range(20):\n    for batch in second: pass\n    train(first)",
            [32, 16],
            id="evaluation before every step",
        ),
        pytest.param(
            "def val_dataloader(): return build(others, shuffle=True)\n"
            "second = val_dataloader()\nfirst = build(data, shuffle=True)",
            [32, 16],
            id="a function for evaluation",
        ),
        pytest.param(
            "first = DataLoader(data, 16, shuffle=True)\n"
            "library = {'__name__': 'lightning_fabric.utilities', 'DataLoader': DataLoader}\n"
            "exec('def rebuild(*a, **o): return DataLoader(*a, **o)', library)\n"
            "second = library['rebuild'](others, 16, sampler=RandomSampler(others))\n"
            "assert second.batch_size == 16\n"
            "second = library['rebuild'](data, 16, sampler=RandomSampler(data))",
            [32, 32],
            id="rebuilt by a library",
        ),
    ],
)
def test_only_the_loader_that_trains_is_changed(run, script, sizes):
    rank, code, log = run(f"{SPLIT}\n{script}\nprint(first.batch_size, second.batch_size)", **APPLY)
    assert code == 0, log
    assert log.splitlines()[-1] == " ".join(map(str, sizes))
    assert all((e.given, e.chosen) == (16, 32) for e in rank.events if isinstance(e, Applied))


@pytest.mark.parametrize(
    "loop",
    [
        "for batch in second: step()",
        "for batch in DataLoader(others, 16, shuffle=True): step()",
        "for pair in zip(first, second): step()",
        "for _ in range(9):\n    for pair in zip(second, first): step()",
        "for _ in range(9):\n    for pair in zip(DataLoader(second.dataset, 2), second): step()",
        "for pair in zip(second, DataLoader(data, 20)): step()\ntrain(second)",
    ],
)
def test_a_loader_that_trains_and_was_not_changed_ends_the_run_in_its_first_steps(run, loop):
    rank, code, log = run(
        f"{SPLIT}first = build(data, shuffle=True)\nsecond = build(others, shuffle=True)\n{loop}",
        **APPLY,
    )
    assert code == 1, log
    lines = (rank.run_dir.parent / "script.py").read_text().splitlines()
    starts = ("first =", "second =") if "second" in loop else ("def build", "for batch")
    changed, trains = (
        f"script.py:{number}" for number, line in enumerate(lines, 1) if line.startswith(starts)
    )
    message = rank.error["message"]
    assert f"the data loader of {trains} feeds the optimizer steps, but zeusrun changed" in message
    assert f"changed that of {changed}: " in message
    assert "${local_batch_size}" in message
    assert rank.steps.steps <= 9


def test_a_loader_that_trains_later_and_was_not_changed_is_told(run):
    rank, code, log = run(
        f"""{SPLIT}
first = DataLoader(data, 16, shuffle=True)
second = DataLoader(others, 16, shuffle=True)
for loader in [first] * 4 + [second] * 4: train(loader)
""",
        **APPLY,
    )
    assert code == 0, log
    applied = [(e.given, e.chosen) for e in rank.events if isinstance(e, Applied)]
    assert applied == [(16, 32), (16, 16)]
    assert observed(rank)[-1] == (16, 1)


def test_a_loader_that_does_not_shuffle_gets_it_and_one_that_shuffles_takes_its_place(run):
    script = f"""{SPLIT}
first = DataLoader(data, 16)
second = DataLoader(others, 16)
print(len(first), len(second))
if {{shuffles}}:
    second, first = first, DataLoader(data, 16, shuffle=True)
for _ in range(3):
    train(first)
    for batch in second: pass
print(first.batch_size, second.batch_size, len(second))
"""
    for shuffles, log, places in (
        (False, "4 3\n32 16 3\n", [32]),
        (True, "4 3\n32 16 7\n", [32, 16, 32]),
    ):
        rank, code, said = run(script.replace("{shuffles}", str(shuffles)), **APPLY)
        assert (code, said) == (0, log)
        assert [e.chosen for e in rank.events if isinstance(e, Applied)] == places
        assert observed(rank) == [(32, 1)]


RATES = {"ZEUSRUN_LEARNING_RATE": "0.5", "ZEUSRUN_GIVEN_LEARNING_RATE": "0.25"}
SCHEDULED = """
schedulers = torch.optim.lr_scheduler
def rates(*following):
    found = []
    for _ in range(8):
        step()
        found.append([group["lr"] for group in optimizer.param_groups])
        for each in following:
            if hasattr(each, "get_last_lr"): found.append(each.get_last_lr())
            each.step()
    return found
class Halving:
    # As of timm: no class of torch; it sets the rates from those at its beginning.
    def __init__(self):
        self.optimizer, self.count = optimizer, 0
        for group in optimizer.param_groups: group["initial_lr"] = group["lr"]
        self.base_values = [group["initial_lr"] for group in optimizer.param_groups]
    def step(self):
        self.count += 1
        for group, base in zip(optimizer.param_groups, self.base_values):
            group["lr"] = base / 2**self.count
def warm(steps): return schedulers.LinearLR(optimizer, 0.1, total_iters=steps)
bias = torch.zeros(1, requires_grad=True)
groups = [{"params": [*layer.parameters()]}, {"params": [bias], "lr": 0.01}]
optimizer = torch.optim.SGD(groups, 0.25)
"""


@pytest.mark.parametrize(
    "schedule",
    [
        "",
        "warm(4)",
        "schedulers.LambdaLR(optimizer, lambda epoch: 0.9**epoch)",
        "schedulers.CosineAnnealingLR(optimizer, 6)",
        "Halving()",
        "schedulers.OneCycleLR(optimizer, [0.5, 0.2], total_steps=20)",
        "schedulers.SequentialLR(optimizer, [warm(2), schedulers.ExponentialLR(optimizer, 0.8)], [2])",
    ],
)
def test_where_the_batch_size_is_not_applied_the_learning_rate_is_the_scripts_own(run, schedule):
    script = f"{SCHEDULED}for each in rates({schedule}): print(each)"
    rank, code, log = run(script, **APPLY, **RATES)
    assert code == 0, log
    applied = [
        (e.choice, e.chosen, e.where) for e in rank.events if isinstance(e, Applied) and e.where
    ]
    assert [each[:2] for each in applied[-2:]] == [("learning_rate", 0.25)] * 2
    assert [e.choice for e in rank.events if isinstance(e, Applied) and not e.where] == [
        "batch_size"
    ]
    numbers = re.findall(r"[\d.e-]+", log)
    _, code, plain = run(script)
    assert code == 0, plain
    assert list(map(float, numbers)) == pytest.approx(
        [float(each) for each in re.findall(r"[\d.e-]+", plain)], rel=1e-12
    )


@pytest.mark.parametrize(
    ("loop", "sizes"),
    [
        ("first = second = DataLoader(data, 8, shuffle=True)", "8 8"),
        ("second, first = DataLoader(others, 16), DataLoader(data, 16)", "16 16"),
        ("second, first = DataLoader(others, 16, shuffle=True), DataLoader(data, 8)", "8 16"),
        (
            "second, first = build(others, shuffle=True), DataLoader(data, batch_sampler=drawn)",
            "None 16",
        ),
    ],
    ids=["another size", "the first one evaluates", "only the evaluation has it", "batch sampler"],
)
def test_nothing_is_applied_where_another_loader_feeds_the_first_step(run, loop, sizes):
    script = f"{SPLIT}{SCHEDULED}{loop}\ntrain(first)\n"
    script += "print(first.batch_size, second.batch_size, optimizer.param_groups[0]['lr'])"
    rank, code, log = run(script, **APPLY, **RATES)
    assert (code, log) == (0, f"{sizes} 0.25\n")
    newest = {
        (e.choice, e.where): e.chosen == e.given for e in rank.events if isinstance(e, Applied)
    }
    assert all(newest.values())
    assert ("batch_size", "") in newest


@pytest.mark.parametrize(
    "loop",
    [
        "for both in zip(first, second): step()",
        "for both in zip(second, first): step()",
        "for batch in first: [*second]; step()",
    ],
)
def test_a_loader_that_feeds_the_steps_beside_another_one_gets_the_chosen_size(run, loop):
    script = f"""{SPLIT}
first, second = DataLoader(data, 16, shuffle=True), DataLoader(others, 8, shuffle=True)
{loop}
print(first.batch_size, second.batch_size, optimizer.param_groups[0]["lr"])
"""
    rank, code, log = run(script, **APPLY, **RATES)
    assert (code, log) == (0, "32 8 0.5\n")
    assert all(e.chosen != e.given for e in rank.events if isinstance(e, Applied))


def test_a_step_before_there_is_a_batch_decides_nothing(run):
    """As some scripts do, so that a scheduler does not warn."""
    script = f"{SPLIT}{SCHEDULED}first = DataLoader(data, 16)\noptimizer.step()\ntrain(first)\n"
    rank, code, log = run(f"{script}print(optimizer.param_groups[0]['lr'])", **APPLY, **RATES)
    assert (code, log) == (0, "0.5\n")
    assert observed(rank) == [(32, 1)]


EPOCHS = """
from zeusrun.worker.hooks.install import installed_hooks
loader = DataLoader(data, 8)
epochs = []
for epoch in range(3):
    for number, batch in enumerate({loader}, 1):
        if number % 4 == 0: step()
    step()  # with the rest
    epochs.append(installed_hooks().observer.epoch)
print(epochs)
"""


def test_after_a_change_of_the_ranks_only_their_own_steps_show_the_batch_size(run):
    rank, code, log = run("""
    from zeusrun.worker.hooks.install import installed_hooks
    loader = DataLoader(torch.zeros(40), 8)
    for epoch in range(2):
        for batch in loader: step()
    vars(loader)["batch_size"] = loader.batch_sampler.batch_size = 4
    installed_hooks().observer.change_ranks()
    for batch in loader: step()
    """)
    assert code == 0, log
    assert observed(rank) == [(8, 1), (4, 1)]


@pytest.mark.parametrize("loader", ["loader", "DataLoader(data, 8)"])
def test_a_pass_counts_once_whatever_loader_it_is_over(run, loader):
    _, code, log = run(EPOCHS.replace("{loader}", loader))
    assert (code, log) == (0, "[1, 2, 3]\n")


def test_libraries_find_the_parameters_of_what_was_replaced(run):
    script = """
    import inspect
    parameters = inspect.signature(DataLoader.__init__).parameters
    print("sampler" in parameters, "num_workers" in parameters)
    """
    _, code, log = run(script, **APPLY)
    assert (code, log) == (0, "True True\n")


def test_a_choice_that_no_loader_took_was_not_asked_for(run):
    rank, code, log = run("DataLoader(data, 4, shuffle=True)", **APPLY)
    assert code == 0, log
    assert not any(isinstance(event, Asked) for event in rank.events)


def test_one_loader_that_is_built_again_every_epoch_is_one(run):
    _, code, log = run(
        """
        import inspect
        for epoch in range(3):
            for batch in DataLoader(data, 16, True): step()
        # Lightning reads the signature, and builds the loader once more somewhere else.
        print(list(inspect.signature(DataLoader.__init__).parameters)[:4])
        DataLoader(dataset=data, batch_size=16, sampler=RandomSampler(data))
        """,
        **APPLY,
    )
    assert code == 0, log
    assert log.splitlines()[-1] == "['self', 'dataset', 'batch_size', 'shuffle']"


def test_the_learning_rate_is_handed_to_optimizers_that_were_built_with_the_base_rate(run):
    rank, code, log = run(
        """
        bias = torch.zeros(1, requires_grad=True)
        groups = [{"params": [*layer.parameters()]}, {"params": [bias], "lr": 0.01}]
        for _ in range(3):
            made = torch.optim.AdamW([dict(group) for group in groups], lr=0.125)
        print([group["lr"] for group in made.param_groups], optimizer.param_groups[0]["lr"])
        """,
        ZEUSRUN_LEARNING_RATE="0.5",
        ZEUSRUN_GIVEN_LEARNING_RATE="0.125",
    )
    assert code == 0, log
    assert log.splitlines()[-1] == "[0.5, 0.01] 0.25"
    (applied,) = [event for event in rank.events if isinstance(event, Applied)]
    assert (applied.choice, applied.given, applied.chosen) == ("learning_rate", 0.125, 0.5)


GROUP = """
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
"""


@pytest.mark.parametrize(
    ("before", "world_size", "alone"),
    [("", "2", True), ("", "1", False), (GROUP, "2", False)],
    ids=["no process group", "one rank", "a process group"],
)
def test_ranks_without_a_process_group_train_alone(run, before, world_size, alone):
    rank, code, log = run(
        f"{before}\nfor batch in DataLoader(data, 10): step()", WORLD_SIZE=world_size
    )
    assert code == 0, log
    assert [e.alone for e in rank.events if isinstance(e, Observed)] == [alone]


@pytest.mark.parametrize(
    ("loader", "samples"),
    [
        ("DataLoader(torch.zeros(50), 10)", 100),  # a part for each rank, or all of it on each
        ("DataLoader(data, 10, sampler=DistributedSampler(data, 2, 0))", 100),
        ("DataLoader(data, 10, sampler=range(0, 100, 2))", 100),  # divides without a word
        ("DataLoader(data, 64, sampler=range(0, 100, 2))", 100),
    ],
)
def test_the_data_are_those_of_all_ranks(run, loader, samples):
    script = f"""
from torch.utils.data import DistributedSampler
loader = {loader}
for _ in range(12):
    for batch in loader: step()
"""
    rank, code, log = run(GROUP + script, WORLD_SIZE="2")
    assert code == 0, log
    assert {e.data for e in rank.events if isinstance(e, Observed)} == {samples}


def test_an_optimizer_that_steps_in_a_hook_of_another_one_is_not_the_one_that_trains(run):
    """The outer optimizer of DiLoCo."""
    rank, code, log = run("""
        outer, steps = torch.optim.SGD(layer.parameters(), 0.75), []
        def average(*_):
            steps.append(len(steps))
            if len(steps) % 4 == 0: outer.step()
        optimizer.register_step_post_hook(average)
        for epoch in range(3):
            for batch in DataLoader(data, 25): step()
        for _ in range(8): step()
    """)
    assert code == 0, log
    assert {e.learning_rates for e in rank.events if isinstance(e, Observed)} == {(0.25,)}
    assert rank.steps.steps == 20


def test_ranks_with_a_manager_of_torchft_train_together(run, tmp_path):
    """With a stand-in; tests/examples trains with the real torchft."""
    (tmp_path / "torchft").mkdir()
    (tmp_path / "torchft" / "__init__.py").touch()
    manager = "class Manager:\n    def __init__(self, pg): self.pg = pg\n"
    (tmp_path / "torchft" / "manager.py").write_text(manager)
    joins = "from torchft.manager import Manager\nManager(pg=None)"
    rank, code, log = run(f"{joins}\nfor batch in DataLoader(data, 10): step()", WORLD_SIZE="2")
    assert code == 0, log
    assert [e.alone for e in rank.events if isinstance(e, Observed)] == [False]
    assert [e.grouped for e in rank.events if isinstance(e, Ended)] == [True]


def test_a_process_group_is_seen_while_no_data_loader_feeds_the_steps(run):
    left = f"{GROUP}\nstep()\ntorch.distributed.destroy_process_group()"
    rank, code, log = run(left, WORLD_SIZE="2")
    assert code == 0, log
    assert [e.grouped for e in rank.events if isinstance(e, Ended)] == [True]
