"""Statistics on one rank, against gradients of single examples and of micro-batches."""

from __future__ import annotations

import copy
import functools
import gc
import io
import math
import weakref

import pytest

from tests.lazily import Lazily
from zeusrun.gradients.rank.noise import Measuring

torch, nn = Lazily("torch"), Lazily("torch.nn")
models = Lazily("tests.gradients.rank.models")
examples = Lazily("zeusrun.gradients.rank.examples")

NEEDS = (
    "a step has one gradient, and nothing to compare it with: the noise scale needs LayerNorm or "
    "RMSNorm layers, gradient accumulation, or several ranks"
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
        self.taken.watch = examples.measure_alone(
            model,
            functools.partial(setattr, self.taken, "watch"),
            self.taken.how(interval, lambda: self.samples, lambda: self.scale, parts),
        )

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

    def train(self, x, y):
        self.backward(x, y)
        self.step()

    @property
    def norms(self):
        self.taken.watch.flush()
        return self.taken.added[-1][0]


def loss_of(model, x, y):
    return (model(x) - y).square().mean()


def gradient(model, x, y, *, whole=False):
    """Return the gradient of the normalisation layers, or of all, by a model of its own."""
    model = copy.deepcopy(model)
    chosen = [model] if whole else [m for m in model.modules() if isinstance(m, models.NORMS)]
    model.zero_grad()
    loss_of(model, x, y).backward()
    return torch.cat([p.grad.flatten() for module in chosen for p in module.parameters()])


def check(norms, gradients):
    stacked = torch.stack(gradients).double()
    assert norms.each == pytest.approx(float(stacked.square().sum(1).mean()), rel=1e-5)
    assert norms.mean == pytest.approx(float(stacked.mean(0).square().sum()), rel=1e-5)
    assert norms.ranks == len(gradients)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(3)


def data(*shape):
    return torch.randn(*shape, 4), torch.randn(*shape, 3)


NETS = {
    "LayerNorm": lambda: models.Net(nn.LayerNorm),
    "RMSNorm": lambda: models.Net(nn.RMSNorm),
    "an RMSNorm of its own": lambda: models.Net(models.RMSNorm),
    "one that adds to its weight": lambda: models.Net(lambda width: models.RMSNorm(width, 1.0)),
    "no bias": lambda: models.Net(lambda width: nn.LayerNorm(width, bias=False)),
    "used three times": lambda: models.Net(uses=3),
    "reentrant checkpoints": lambda: models.Net(uses=2, checkpointed=True),
}


@pytest.mark.parametrize("shape", [(8,), (8, 5), (8, 2, 3)])
@pytest.mark.parametrize("name", NETS)
def test_examples_have_the_norms_of_their_own_gradients(name, shape):
    watched, (x, y) = Watched(NETS[name]()), data(*shape)
    each = [gradient(watched.model, x[i : i + 1], y[i : i + 1]) for i in range(8)]
    watched.train(x, y)
    check(watched.norms, each)
    assert watched.taken.added[-1][1] == "examples"
    assert not watched.taken.problems


def test_examples_of_micro_batches_are_those_of_one_batch():
    watched, (x, y) = Watched(models.Net()), data(8, 5)
    each = [gradient(watched.model, x[i : i + 1], y[i : i + 1]) for i in range(8)]
    for part in (slice(0, 4), slice(4, 8)):
        watched.backward(x[part], y[part], divide=2)
        with torch.no_grad():
            watched.model(x)
    watched.step()
    check(watched.norms, each)


def test_a_loss_scale_is_removed():
    watched, (x, y) = Watched(models.Net()), data(8, 5)
    watched.scale = torch.tensor(4096.0)
    each = [gradient(watched.model, x[i : i + 1], y[i : i + 1]) for i in range(8)]
    watched.train(x, y)
    check(watched.norms, each)


def test_the_batch_may_be_the_second_dimension():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)
    model = nn.Sequential(layer, nn.Linear(4, 3))
    x, y = data(6, 6)  # steps, samples
    watched = Watched(model)
    each = [gradient(model, x[:, i : i + 1], y[:, i : i + 1]) for i in range(6)]
    watched.train(x, y)
    check(watched.norms, each)


def test_without_a_data_loader_the_micro_batches_are_as_chosen():
    watched, (x, y) = Watched(models.Net(), parts=2), data(8, 8)
    watched.samples = 8
    for part in (slice(0, 4), slice(4, 8)):
        (loss_of(watched.model, x[part], y[part]) / 2).backward()
    watched.step()
    assert watched.norms.ranks == 8


def test_evaluation_leaves_no_trace():
    watched, (x, y) = Watched(models.Net()), data(8, 5)
    watched.model.eval()
    loss_of(watched.model, *data(3))  # with gradients, which nobody asks for
    watched.model.train()
    each = [gradient(watched.model, x[i : i + 1], y[i : i + 1]) for i in range(8)]
    watched.train(x, y)
    check(watched.norms, each)


def test_weights_are_the_same_with_and_without():
    pair = [models.Net(uses=2) for _ in range(2)]
    pair[1].load_state_dict(pair[0].state_dict())
    plain, watched = torch.optim.SGD(pair[0].parameters(), 0.1), Watched(pair[1])
    for _ in range(5):
        x, y = data(8, 5)
        plain.zero_grad()
        for part in (slice(0, 4), slice(4, 8)):
            (loss_of(pair[0], x[part], y[part]) / 2).backward()
        plain.step()
        for part in (slice(0, 4), slice(4, 8)):
            watched.backward(x[part], y[part], divide=2)
        watched.step()
    assert all(map(torch.equal, pair[0].parameters(), pair[1].parameters()))
    watched.taken.watch.flush()
    assert {how for _, how in watched.taken.added} == {"examples"}


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: models.Net(models.Wrong), id="computes something else"),
        pytest.param(lambda: models.Raises(models.Net()), id="no dimension of samples"),
        pytest.param(
            lambda: torch.compile(models.Net(), backend="eager"),
            id="compiled",
            marks=pytest.mark.long,  # torch._dynamo
        ),
        pytest.param(
            lambda: models.Net(uses=2, checkpointed=False),
            id="checkpoints",
            marks=pytest.mark.long,  # torch._dynamo
        ),
        pytest.param(lambda: models.Net(nn.Identity), id="no such layers"),
        pytest.param(lambda: models.Net(nn.BatchNorm1d), id="BatchNorm"),
    ],
)
def test_other_models_need_micro_batches(model):
    model = model()
    shape = (8,) if any(isinstance(m, nn.BatchNorm1d) for m in model.modules()) else (8, 5)
    watched, alone = Watched(model), Watched(copy.deepcopy(model))
    for _ in range(14):
        for _ in range(2):
            watched.backward(*data(*shape), divide=2)
        watched.step()
        alone.train(*data(*shape))
    watched.taken.watch.flush()
    assert watched.taken.added[-1][1] == "micro_batches"
    assert watched.norms.ranks == 2
    assert watched.norms.inverse == pytest.approx(1 / 8)
    assert not watched.taken.problems
    alone.taken.watch.flush()
    assert not alone.taken.added
    assert alone.taken.problems == [NEEDS]


def test_a_step_with_one_gradient_is_told_after_ten_of_them():
    watched = Watched(models.Net(nn.Identity))
    for _ in range(9):
        watched.train(*data(8))
    for _ in range(2):  # the first does not count: it has another number of gradients
        for _ in range(2):
            watched.backward(*data(8), divide=2)
        watched.step()
    for _ in range(9):
        watched.train(*data(8))
    assert not watched.taken.problems
    for _ in range(20):
        watched.train(*data(8))
    assert watched.taken.problems == [NEEDS]


def test_a_model_may_be_called_twice_for_a_sample():
    watched, (x, y) = Watched(models.Net()), data(8)
    parts = [(x[i : i + 1], y[i : i + 1]) for i in range(8)]
    each = [gradient(watched.model, a, b) + gradient(watched.model, -a, b) for a, b in parts]
    watched.samples = 8
    (loss_of(watched.model, x, y) + loss_of(watched.model, -x, y)).backward()
    watched.step()
    check(watched.norms, each)


def test_micro_batches_stand_for_ranks():
    watched = Watched(models.Net(nn.Identity))
    for _ in range(3):
        parts = [data(4) for _ in range(3)]
        each = [gradient(watched.model, x, y, whole=True) for x, y in parts]
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
    watched = Watched(models.Net(nn.Identity))
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
    watched = Watched(models.Net(nn.Identity))
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
    watched = Watched(models.Net(), 3)
    for _ in range(7):
        watched.train(*data(8, 5))
    watched.taken.watch.flush()
    assert len(watched.taken.added) == 3


def test_a_copy_and_a_saved_model_have_no_hooks_of_zeusrun():
    watched = Watched(models.Net())
    x, y = data(8, 5)
    other = copy.deepcopy(watched.model)
    file = io.BytesIO()
    torch.save(watched.model, file)
    assert b"zeusrun" not in file.getvalue()
    file.seek(0)
    watched.backward(x, y)
    for model in (other, torch.load(file, weights_only=False)):
        loss_of(model, x, y).backward()
    watched.step()
    assert watched.norms.ranks == 8


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
@pytest.mark.long  # torch.compile takes 3 s of CPU
def test_a_watched_model_can_be_scripted_traced_and_compiled():
    watched = Watched(nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)))
    x, y = data(8)
    watched.backward(x, y)
    for model in (watched.model, copy.deepcopy(watched.model)):
        expected = model(x)
        for other in (
            torch.jit.script(model),
            torch.jit.trace(model, x),
            torch.compile(model, fullgraph=True, backend="eager"),
        ):
            assert torch.allclose(other(x), expected)
    watched.step()
    assert watched.norms.ranks == 8


@pytest.mark.parametrize("norm", ["LayerNorm", "Identity"])
def test_a_model_can_be_dropped(norm):
    model, taken = models.Net(getattr(nn, norm), uses=2), Taken()
    replace = functools.partial(setattr, taken, "watch")
    watch = examples.measure_alone(model, replace, taken.how(1, lambda: 8, lambda: 1.0, 2))
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
