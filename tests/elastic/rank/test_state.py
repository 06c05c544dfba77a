"""What a newcomer receives: taken apart and put together, without processes."""

from __future__ import annotations

import gc
import pickle
import random
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest

from tests.lazily import Lazily

torch = Lazily("torch")
numpy = Lazily("numpy")
state = Lazily("zeusrun.elastic.rank.state")
member = Lazily("zeusrun.elastic.rank.member")


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


@pytest.fixture
def transfer(monkeypatch):
    """Return a function that sends from one thread to another over gloo; it returns what arrives."""
    own, size = threading.local(), 2
    wire = SimpleNamespace(
        isend=lambda tensor, rank: own.group.send([tensor], rank, 0),
        irecv=lambda tensor, rank: own.group.recv([tensor], rank, 0),
    )

    def run(source, target, more):
        store, arrived = torch.distributed.HashStore(), []

        def take_part(rank):
            timeout = timedelta(seconds=60)
            own.group = torch.distributed.ProcessGroupGloo(store, rank, size, timeout)
            if rank == 0:
                state.send_state(source, more, [1])
            else:
                arrived.append(state.receive_state(target, 0))

        threads = [threading.Thread(target=take_part, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        return arrived[0]

    monkeypatch.setattr("zeusrun.elastic.rank.state.distributed", wire)
    return run


def follow(*models, owners=()):
    tracked = member.Tracked()
    for model in models:
        tracked.add_model(model, {})
    for owner in owners:
        tracked.add(owner)
    return tracked


def test_a_newcomer_receives_parameters_and_the_states_of_optimizers(transfer):
    torch.manual_seed(1)
    models = [wrap(torch.nn.Linear(2, 1)) for _ in range(2)]
    optimizers = [torch.optim.AdamW(each.parameters(), amsgrad=True) for each in models]
    models[0](torch.ones(1, 2)).sum().backward()
    optimizers[0].step()
    source, target = (
        follow(model, owners=[optimizer])
        for model, optimizer in zip(models, optimizers, strict=True)
    )
    (content,), more = transfer(source, target, {"place": (3, None)})
    assert more == {"place": (3, None)}
    assert torch.equal(models[0].module.weight, models[1].module.weight)
    optimizers[1].load_state_dict(content)
    expected, found = (each.state_dict()["state"] for each in optimizers)
    assert expected.keys() == found.keys()
    for key, moments in expected.items():
        assert moments.keys() == found[key].keys()
        assert all(torch.equal(moments[name], found[key][name]) for name in moments)


def test_tensors_of_any_kind_arrive_as_they_are(transfer):
    shared = torch.arange(3)
    given = [
        shared,
        torch.tensor(4.0),
        torch.zeros(0, 2),
        torch.tensor([True, False]),
        torch.ones(2, 3, dtype=torch.bfloat16).T,
        torch.eye(2).to_sparse(),
        torch.nn.Parameter(torch.ones(2)),
        {"again": shared, "deep": [torch.tensor([2j])]},
    ]
    _, found = transfer(follow(), follow(), given)
    flat = [*found[:-1], found[-1]["again"], *found[-1]["deep"]]
    for one, other in zip([*given[:-1], shared, torch.tensor([2j])], flat, strict=True):
        assert (one.dtype, one.layout, one.shape) == (other.dtype, other.layout, other.shape)
        assert torch.equal(one.to_dense(), other.to_dense())
    assert found[0] is found[-1]["again"]
    assert isinstance(found[-2], torch.nn.Parameter)


def test_a_parameter_with_another_order_in_memory_is_filled_in_place(transfer):
    models = [wrap(torch.nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)) for _ in "ab"]
    before = models[1].module.weight.data_ptr()
    transfer(follow(models[0]), follow(models[1]), None)
    assert torch.equal(models[0].module.weight, models[1].module.weight)
    assert models[1].module.weight.data_ptr() == before


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
    state.set_random_states((*states[:2], None, None))
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
        tracked.add_model(model, {})
    linear, norm = (model.module for model in models)
    expected = [*linear.parameters(), *norm.parameters(), *norm.buffers()]
    assert [id(each) for each in tracked.tensors()] == [id(each) for each in expected]
    assert [id(each) for each in tracked.models] == [id(each) for each in models]


def test_objects_that_are_gone_are_not_kept(tracked):
    model, other = wrap(torch.nn.Linear(2, 1)), Thing()
    tracked.add_model(model, {})
    tracked.add(other)
    del model, other
    gc.collect()
    assert (tracked.models, tracked.others, tracked.tensors()) == ([], [], [])


def test_an_object_that_is_built_twice_is_tracked_once(tracked):
    one, other = Thing(), Thing()
    for each in (one, other, one):
        tracked.add(each)
    assert tracked.others == [one, other]


def normed(track):
    """Return a wrapped model with buffers, of which one takes no part in training."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    model.register_buffer("view", torch.ones(1).expand(4))
    model.register_buffer("count", torch.zeros(1), persistent=False)
    wrapped = wrap(model)
    track.add_model(wrapped, {})
    return wrapped


def contents(wrapped):
    return {name: each.clone() for name, each in wrapped.module.named_buffers()}


@pytest.mark.parametrize("is_made", [True, False])
def test_gradients_of_a_lost_step_are_forgotten_whether_it_was_made_or_not(tracked, is_made):
    model = normed(tracked)
    model.module(torch.ones(4, 2)).sum().backward()
    assert model.module[0].weight.grad is not None
    tracked.end_step(is_made=is_made)
    assert model.module[0].weight.grad is None


def test_a_step_that_is_made_again_finds_the_buffers_as_they_were(tracked):
    models = [normed(tracked), normed(tracked)]
    for _ in range(3):
        tracked.keep_buffers()
        before = [contents(each) for each in models]
        for each in models:
            for _ in range(2):  # micro-batches
                each.module(torch.randn(4, 2))
            each.module.count = each.module.count + 1  # another tensor
        after = [contents(each) for each in models]
        assert [
            each["1.num_batches_tracked"] - old["1.num_batches_tracked"]
            for each, old in zip(after, before, strict=True)
        ] == [2, 2]
        tracked.end_step(is_made=True)
        torch.testing.assert_close([contents(each) for each in models], after)
        tracked.end_step(is_made=False)
        torch.testing.assert_close([contents(each) for each in models], before, rtol=0, atol=0)
        for each in models:
            each.module(torch.randn(4, 2))


def test_a_buffer_that_a_step_has_replaced_by_one_of_another_size_stays(tracked):
    model = normed(tracked)
    tracked.keep_buffers()
    model.module.count = torch.ones(3)
    tracked.end_step(is_made=False)
    assert model.module.count.tolist() == [1, 1, 1]
