"""``watch`` on one rank, in ranks as torchrun starts them: what the script calls, what is recorded."""

from __future__ import annotations

import json
import textwrap

import pytest

from tests.worker.rank import Rank
from zeusrun.sidecar.events import Watched

PREAMBLE = """
import torch
import zeusrun
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(96, 4)
data = TensorDataset(x, 3 * x.sum(1, keepdim=True) + 0.1 * torch.randn(96, 1))

def train(model, call=None, epochs=1, accumulate=1):
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    for epoch in range(epochs):
        for number, (x, y) in enumerate(DataLoader(data, 8), 1):
            (torch.nn.functional.mse_loss((call or model)(x), y) / accumulate).backward()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()

def plain():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

"""
WATCH = {"noise_scale": {"interval": 1}}


@pytest.fixture
def run(tmp_path):
    def start(script, watch=WATCH, **environment):
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE + textwrap.dedent(script))
        rank = Rank(tmp_path / "run")
        if watch is not None:
            environment["ZEUSRUN_PARTS"] = json.dumps({"watch": watch})
        code, log = rank.run_forked(path, **environment)
        assert code == 0, log
        return [event for event in rank.events if isinstance(event, Watched)]

    return start


@pytest.mark.parametrize(
    "script",
    [
        "model = plain(); zeusrun.watch(model); train(model, accumulate=2, epochs=9)",
        pytest.param(
            """
            from torch import distributed
            from torch.nn.parallel import DistributedDataParallel
            distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
            model = DistributedDataParallel(plain())
            zeusrun.watch(model)
            zeusrun.watch(model.module)
            train(model, accumulate=2, epochs=9)
            distributed.destroy_process_group()
            """,
            marks=pytest.mark.long,
        ),
    ],
    ids=["a model", "DDP of one rank"],
)
def test_a_model_is_measured_by_its_micro_batches(run, script):
    events = run(script)
    assert {event.model for event in events} == {0}
    assert events[-1].how == "micro_batches"
    assert events[-1].problem is None
    values = events[-1].values
    assert 0 < values["noise_scale_low"] < values["noise_scale"] < values["noise_scale_high"]
    assert [e.samples for e in events] == sorted(e.samples for e in events)
    assert 0 < events[-1].samples < 9 * 96


@pytest.mark.parametrize(
    ("script", "environment", "problem"),
    [
        ("model = plain(); zeusrun.watch(model); train(model)", {"WORLD_SIZE": "2"}, "2 ranks"),
        ("train(plain())", {}, "call zeusrun.watch(model)"),
        ("train(plain())", {"WORLD_SIZE": "2"}, "makes no DistributedDataParallel"),
        ("zeusrun.watch('model'); train(plain())", {}, "not str"),
        ("zeusrun.watch(['model']); train(plain())", {}, "not list"),
        (
            """
            from torch import distributed
            from torch.distributed.fsdp import fully_shard
            from torch.distributed.device_mesh import init_device_mesh
            distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
            model = plain()
            fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
            zeusrun.watch(model)
            train(model)
            distributed.destroy_process_group()
            """,
            {},
            "sharded",
        ),
        (
            """
            class Embeds(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.table = torch.nn.Embedding(8, 4, sparse=True)
                    self.last = torch.nn.Linear(4, 1)

                def forward(self, x):
                    return self.last(self.table(x[:, 0].abs().long().clamp(max=7)))

            model = Embeds()
            zeusrun.watch(model)
            train(model)
            """,
            {},
            "sparse",
        ),
        (
            """
            model = plain().requires_grad_(False)
            zeusrun.watch(model)
            head = torch.nn.Linear(1, 1)
            train(head, lambda x: head(model(x)))
            """,
            {},
            "none of its parameters needs a gradient",
        ),
        (
            """
            model = plain()
            zeusrun.watch(model)
            train(model, lambda x: model(x) * float("nan"), accumulate=2, epochs=6)
            """,
            {},
            "last 30 optimizer steps: the gradients are infinite or NaN",
        ),
        (
            "model = plain(); zeusrun.watch(model); train(model)",
            {},
            "a step has one gradient, and nothing to compare it with: the noise scale needs gradient acc",
        ),
        (
            """
            model = plain()
            zeusrun.watch(model)
            optimizer = torch.optim.SGD(model.parameters(), 0.001)
            for _ in range(35):
                for part in (x[:8], x[8:16]):
                    model(part).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            """,
            {},
            "last 30 optimizer steps: a rank has no gradients, or no data loader shows how many",
        ),
        (
            """
            model = plain()
            zeusrun.watch(model)
            optimizer = torch.optim.SGD(model.parameters(), 0.001)
            for epoch in range(3):
                for x, y in DataLoader(data, 8):
                    first = model[0].weight
                    (first.grad,) = torch.autograd.grad(model(x).sum(), [first])
                    optimizer.step()
            """,
            {},
            "a step has one gradient",
        ),
    ],
    ids=[
        *("ranks", "not named", "not wrapped", "text", "list", "FSDP2", "sparse"),
        *("frozen", "NaN", "one gradient", "no DataLoader", "no backward"),
    ],
)
def test_what_cannot_be_measured_is_reported_once_and_trains_on(run, script, environment, problem):
    (event,) = run(script, **environment)
    assert problem in event.problem
    assert not event.values


def test_without_the_section_nothing_is_watched(run):
    assert run("zeusrun.watch(plain()); zeusrun.watch(3); train(plain())", watch=None) == []


def test_a_noise_scale_that_stayed_unknown_is_explained(run):
    random = "x, data = None, TensorDataset(torch.randn(96, 4), torch.randn(96, 1))\n"
    model = "model = plain(); zeusrun.watch(model); train(model, accumulate=2)"
    last = run(random + model)[-1]
    assert "noise_scale" not in last.values
    assert "unknown, because |G|² was within four standard errors of 0" in last.problem


def test_the_scale_of_the_loss_is_removed(run):
    events = run(
        """
        models = []
        for scale in (1.0, 1024.0):
            torch.manual_seed(1)
            models.append(model := plain())
            zeusrun.watch(model)
            optimizer = torch.optim.SGD(model.parameters(), 0.001)
            scaler = torch.amp.GradScaler("cpu", init_scale=scale)
            for number, (batch, y) in enumerate(DataLoader(data, 8)):
                scaler.scale(torch.nn.functional.mse_loss(model(batch), y) / 2).backward()
                if number % 2:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
        """
    )
    plain, scaled = ([e for e in events if e.model == model][-1].values for model in (0, 1))
    assert scaled == pytest.approx(plain, rel=1e-3)


def test_a_model_that_is_gone_and_cannot_be_recorded_does_not_end_the_training(run):
    events = run(
        """
        import gc
        from zeusrun.gradients.rank.agent import WatchedModel

        def refuse(model):
            raise OSError("no space left")

        def train_one():
            model = plain()
            zeusrun.watch(model)
            train(model, accumulate=2, epochs=2)

        train_one()
        gc.collect()
        finish, WatchedModel.finish = WatchedModel.finish, refuse
        train_one()
        WatchedModel.finish = finish
        """
    )
    assert 1 in {event.model for event in events}


def test_models_that_come_and_go_have_numbers_of_their_own_and_keep_their_last_values(run):
    events = run(
        """
        import gc

        def train_one():
            model = plain()
            zeusrun.watch(model)
            train(model, accumulate=2, epochs=2)

        for _ in range(3):
            train_one()
            gc.collect()
        """
    )
    last = {event.model: event.values for event in events}
    assert last.keys() == {0, 1, 2}
    assert all("noise_scale_low" in values for values in last.values())
