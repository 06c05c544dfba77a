"""What a newcomer receives: taken apart and put together, without processes."""

from __future__ import annotations

import gc
import pickle
import random

import pytest

from tests.lazily import Lazily

torch = Lazily("torch")
numpy = Lazily("numpy")
state = Lazily("zeusrun.worker.elastic.state")
member = Lazily("zeusrun.worker.elastic.member")


class Thing:
    """An object that can be tracked."""


def trained(kind, **options):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **options)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return model, optimizer, scheduler


@pytest.mark.parametrize(
    ("kind", "options"),
    [("SGD", {}), ("SGD", {"momentum": 0.9}), ("Adam", {"amsgrad": True}), ("Adagrad", {})],
)
def test_another_optimizer_goes_on_as_the_first(kind, options):
    model, optimizer, scheduler = trained(kind, **options)
    content = pickle.loads(pickle.dumps([optimizer.state_dict(), scheduler.state_dict()]))
    other = torch.nn.Linear(3, 2)
    other.load_state_dict(model.state_dict())
    again = getattr(torch.optim, kind)(other.parameters(), lr=9.0, **options)
    follow = torch.optim.lr_scheduler.StepLR(again, 1)
    again.load_state_dict(content[0])
    follow.load_state_dict(content[1])
    batch = torch.ones(4, 3)
    for _ in range(2):
        for each, step, schedule in (
            (model, optimizer, scheduler),
            (other, again, follow),
        ):
            each(batch).sum().backward()
            step.step()
            step.zero_grad()
            schedule.step()
    assert torch.equal(model.weight, other.weight)
    assert follow.get_last_lr() == scheduler.get_last_lr()


def draw():
    return torch.rand(1).item(), random.random(), numpy.random.rand()


def test_random_numbers_go_on_as_on_the_other_rank():
    numpy.random.rand()  # imports it
    states = pickle.loads(pickle.dumps(state.random_states()))
    expected = draw()
    for seed in (1, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed)
        assert draw() != expected
        state.set_random_states(states)
        assert draw() == expected


def test_without_numpy_the_others_are_set():
    states = state.random_states()
    before = numpy.random.get_state()[1].tolist()
    state.set_random_states((*states[:2], None))
    assert numpy.random.get_state()[1].tolist() == before


def test_equal_random_states_have_the_same_digest_and_fit_in_a_tensor():
    states = state.random_states()
    first = state.digest(states)
    assert state.digest(pickle.loads(pickle.dumps(states))) == first
    assert int(torch.tensor([first])[0]) == first
    torch.rand(1)
    assert state.digest(state.random_states()) != first
    state.set_random_states(states)
    random.random()
    assert state.digest(state.random_states()) != first


@pytest.fixture
def tracked():
    return member.Tracked()


def wrap(model):
    """Stand for a ``DistributedDataParallel``."""
    wrapped = torch.nn.Sequential()
    wrapped.module = model
    return wrapped


def test_parameters_and_buffers_are_in_the_order_in_which_the_models_were_built(tracked):
    models = [wrap(torch.nn.Linear(2, 1)), wrap(torch.nn.BatchNorm1d(2))]
    for model in models:
        tracked.add_model(model)
    linear, norm = (model.module for model in models)
    expected = [*linear.parameters(), *norm.parameters(), *norm.buffers()]
    assert [id(each) for each in tracked.tensors()] == [id(each) for each in expected]
    assert [id(each) for each in tracked.models] == [id(each) for each in models]


def test_objects_that_are_gone_are_not_kept(tracked):
    model, other = wrap(torch.nn.Linear(2, 1)), Thing()
    tracked.add_model(model)
    tracked.add(other)
    del model, other
    gc.collect()
    assert (tracked.models, tracked.others, tracked.tensors()) == ([], [], [])


def test_an_object_that_is_built_twice_is_tracked_once(tracked):
    one, other = Thing(), Thing()
    for each in (one, other, one):
        tracked.add(each)
    assert tracked.others == [one, other]


def test_gradients_of_a_step_are_forgotten(tracked):
    model = wrap(torch.nn.Linear(2, 1))
    tracked.add_model(model)
    model.module(torch.ones(1, 2)).sum().backward()
    assert model.module.weight.grad is not None
    tracked.clear_gradients()
    assert model.module.weight.grad is None
