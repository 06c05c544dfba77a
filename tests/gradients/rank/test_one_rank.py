"""Statistics on one rank, against gradients of micro-batches."""

from __future__ import annotations

import copy
import gc
import io
import math
import weakref

import pytest

from tests.lazily import Lazily
from zeusrun.gradients.rank.noise import Measuring

torch, nn = Lazily("torch"), Lazily("torch.nn")
gradients = Lazily("zeusrun.gradients.rank.gradients")

NEEDS = (
    "a step has one gradient, and nothing to compare it with: the noise scale needs gradient "
    "accumulation, or several ranks"
)


class Taken:
    """Stands for the ``WatchedModel`` of watch.py."""

    def __init__(self):
        self.added, self.problems = [], []

    def add(self, norms, how):
        self.added.append((norms, how))

    def report_problem(self, problem):
        self.problems.append(problem)

    def how(self, interval, samples, scale, parts):
        fail = self.report_problem
        return Measuring(interval, samples, scale, self.add, fail, fail, parts)


class Watched:
    """A model and its loop, with as many samples a step as its data say."""

    def __init__(self, model, interval=1, parts=1):
        self.model, self.taken, self.samples, self.scale = model, Taken(), 0, 1.0
        self.optimizer = torch.optim.SGD(model.parameters(), 0.1)
        how = self.taken.how(interval, lambda: self.samples, lambda: self.scale, parts)
        self.taken.watch = gradients.Gradients(model.parameters(), how)

    def backward(self, x, y, divide=1):
        self.samples += len(x)
        (self.scale * loss_of(self.model, x, y) / divide).backward()

    def step(self):
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= self.scale
        self.optimizer.step()
        self.taken.watch.after_step()
        self.optimizer.zero_grad()
        self.samples = 0

    def train(self, *parts):
        for x, y in parts:
            self.backward(x, y, divide=len(parts))
        self.step()

    @property
    def norms(self):
        self.taken.watch.flush()
        return self.taken.added[-1][0]


def loss_of(model, x, y):
    return (model(x) - y).square().mean()


def build():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 3))


def gradient(model, x, y):
    """Return the gradient of all parameters, by a model of its own."""
    model = copy.deepcopy(model)
    model.zero_grad()
    loss_of(model, x, y).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def check(norms, each):
    stacked = torch.stack(each).double()
    assert norms.each == pytest.approx(float(stacked.square().sum(1).mean()), rel=1e-5)
    assert norms.mean == pytest.approx(float(stacked.mean(0).square().sum()), rel=1e-5)
    assert norms.ranks == len(each)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(3)


def data(*shape):
    return torch.randn(*shape, 4), torch.randn(*shape, 3)


def test_a_loss_scale_is_removed():
    watched, parts = Watched(build()), [data(8, 5), data(8, 5)]
    watched.scale = torch.tensor(4096.0)
    each = [gradient(watched.model, x, y) for x, y in parts]
    watched.train(*parts)
    check(watched.norms, each)


def test_without_a_data_loader_the_micro_batches_are_as_chosen():
    watched, (x, y) = Watched(build(), parts=2), data(8, 8)
    watched.samples = 8
    for part in (slice(0, 4), slice(4, 8)):
        (loss_of(watched.model, x[part], y[part]) / 2).backward()
    watched.step()
    assert watched.norms.ranks == 2
    assert watched.norms.inverse == pytest.approx(1 / 4)


def test_evaluation_leaves_no_trace():
    watched, parts = Watched(build()), [data(8, 5), data(8, 5)]
    watched.model.eval()
    loss_of(watched.model, *data(3))  # with gradients, which nobody asks for
    watched.model.train()
    each = [gradient(watched.model, x, y) for x, y in parts]
    watched.train(*parts)
    check(watched.norms, each)


def test_weights_are_the_same_with_and_without():
    pair = [build() for _ in range(2)]
    pair[1].load_state_dict(pair[0].state_dict())
    plain, watched = torch.optim.SGD(pair[0].parameters(), 0.1), Watched(pair[1])
    for _ in range(5):
        parts = [data(4, 5), data(4, 5)]
        plain.zero_grad()
        for x, y in parts:
            (loss_of(pair[0], x, y) / 2).backward()
        plain.step()
        watched.train(*parts)
    assert all(map(torch.equal, pair[0].parameters(), pair[1].parameters()))
    watched.taken.watch.flush()
    assert {how for _, how in watched.taken.added} == {"micro_batches"}


def test_a_step_with_one_gradient_is_told_after_ten_of_them():
    watched = Watched(build())
    for _ in range(9):
        watched.train(data(8))
    for _ in range(2):  # the first does not count: it has another number of gradients
        for _ in range(2):
            watched.backward(*data(8), divide=2)
        watched.step()
    for _ in range(9):
        watched.train(data(8))
    assert not watched.taken.problems
    for _ in range(20):
        watched.train(data(8))
    assert watched.taken.problems == [NEEDS]


def test_micro_batches_stand_for_ranks():
    watched = Watched(build())
    for _ in range(3):
        parts = [data(4) for _ in range(3)]
        each = [gradient(watched.model, x, y) for x, y in parts]
        for x, y in parts:
            watched.backward(x, y, divide=3)
        torch.nn.utils.clip_grad_norm_(watched.model.parameters(), 1e-3)
        watched.step()
    check(watched.norms, each)
    assert watched.taken.added[-1][1] == "micro_batches"
    assert watched.norms.inverse == pytest.approx(1 / 4)
    count = len(watched.taken.added)
    watched.backward(*data(4))  # the last of an epoch
    watched.step()
    assert len(watched.taken.added) == count


def test_two_losses_of_the_same_samples_are_no_micro_batches():
    watched = Watched(build())
    for _ in range(10):
        x, y = data(4)
        watched.backward(x, y)
        watched.samples -= 4
        watched.backward(x, 2 * y)
        watched.step()
    watched.taken.watch.flush()
    assert not watched.taken.added
    assert watched.taken.problems == [NEEDS]


def test_gradients_thrown_away_without_a_step_do_not_count():
    watched = Watched(build())
    for _ in range(4):
        watched.backward(torch.full((4, 4), math.inf), torch.zeros(4, 3))
        watched.optimizer.zero_grad()  # as a GradScaler makes of an overflow
        for _ in range(2):
            watched.backward(*data(4), divide=2)
        watched.step()
    watched.taken.watch.flush()
    (norms, how), *_ = watched.taken.added
    assert how == "micro_batches"
    assert math.isfinite(norms.each)
    assert norms.inverse == pytest.approx(1 / 4)


def test_the_interval_is_in_optimizer_steps():
    watched = Watched(build(), 3)
    for _ in range(7):
        watched.train(data(8, 5), data(8, 5))
    watched.taken.watch.flush()
    assert len(watched.taken.added) == 3


def test_a_copy_and_a_saved_model_have_no_hooks_of_zeusrun():
    watched, parts = Watched(build()), [data(8, 5), data(8, 5)]
    other = copy.deepcopy(watched.model)
    file = io.BytesIO()
    torch.save(watched.model, file)
    assert b"zeusrun" not in file.getvalue()
    file.seek(0)
    each = [gradient(watched.model, x, y) for x, y in parts]
    watched.backward(*parts[0], divide=2)
    for model in (other, torch.load(file, weights_only=False)):
        loss_of(model, *parts[0]).backward()
    watched.backward(*parts[1], divide=2)
    watched.step()
    check(watched.norms, each)


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
@pytest.mark.long  # torch.compile takes 3 s of CPU
def test_a_watched_model_can_be_scripted_traced_and_compiled():
    watched = Watched(build())
    x, y = data(8)
    watched.backward(x, y, divide=2)
    for model in (watched.model, copy.deepcopy(watched.model)):
        expected = model(x)
        for other in (
            torch.jit.script(model),
            torch.jit.trace(model, x),
            torch.compile(model, fullgraph=True, backend="eager"),
        ):
            assert torch.allclose(other(x), expected)
    watched.backward(x, y, divide=2)
    watched.step()
    assert watched.norms.ranks == 2


def test_a_model_can_be_dropped():
    model, taken = build(), Taken()
    how = taken.how(1, lambda: 8, lambda: 1.0, 2)
    watch = gradients.Gradients(model.parameters(), how)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        for _ in range(2):
            loss_of(model, *data(4, 5)).backward()
        watch.after_step()
        optimizer.zero_grad()
    gone = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert gone() is None
    watch.flush()
    assert taken.added
