"""The echo: collectives of a newcomer, on one process."""

from __future__ import annotations

import pytest

from tests.lazily import Lazily

torch = Lazily("torch")
distributed = Lazily("torch.distributed")
groups = Lazily("zeusrun.elastic.rank.groups")

RANK, SIZE = 1, 3


@pytest.fixture(autouse=True)
def _echo():
    groups.open_echo(RANK, SIZE)
    yield
    groups.close_group()
    assert not distributed.is_initialized()


def tensor(*values):
    return torch.tensor(values, dtype=torch.float32)


def test_it_has_the_rank_and_the_ranks_that_it_is_for():
    assert (distributed.get_rank(), distributed.get_world_size()) == (RANK, SIZE)


def test_it_can_be_opened_again():
    groups.close_group()
    groups.open_echo(0, 2)
    assert (distributed.get_rank(), distributed.get_world_size()) == (0, 2)


def test_a_barrier_returns():
    distributed.barrier()


@pytest.mark.parametrize(
    ("name", "expected"), [("SUM", [3.0, 6.0]), ("AVG", [1.0, 2.0]), ("MAX", [1.0, 2.0])]
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_all_reduce_is_that_of_equal_values(name, expected, asynchronous):
    own = tensor(1, 2)
    work = distributed.all_reduce(own, getattr(distributed.ReduceOp, name), async_op=asynchronous)
    if asynchronous:
        work.wait()
    assert own.tolist() == expected


def test_a_reduce_is_that_of_equal_values():
    own = tensor(1, 2)
    distributed.reduce(own, dst=RANK)
    assert own.tolist() == [3, 6]


@pytest.mark.parametrize("source", range(SIZE))
def test_a_broadcast_leaves_the_own_values(source):
    own = tensor(1, 2)
    distributed.broadcast(own, source)
    assert own.tolist() == [1, 2]


def test_every_rank_gathers_the_own_values():
    found = [tensor(0, 0) for _ in range(SIZE)]
    distributed.all_gather(found, tensor(1, 2))
    assert [each.tolist() for each in found] == [[1, 2]] * SIZE


@pytest.mark.filterwarnings("ignore:.*all_gather_single:FutureWarning")
def test_every_rank_gathers_them_into_one_tensor():
    found = torch.zeros(SIZE * 2)
    distributed.all_gather_into_tensor(found, tensor(1, 2))
    assert found.tolist() == [1, 2] * SIZE


def test_every_rank_gathers_the_own_object():
    found = [None] * SIZE
    distributed.all_gather_object(found, {"rank": RANK})
    assert found == [{"rank": RANK}] * SIZE


@pytest.mark.parametrize("rank", range(SIZE))
def test_one_rank_gathers_the_own_values(rank):
    found = [tensor(0) for _ in range(SIZE)] if rank == RANK else None
    distributed.gather(tensor(7), found, dst=rank)
    assert found is None or [each.tolist() for each in found] == [[7]] * SIZE


def test_what_it_cannot_do_is_an_error_that_says_so():
    with pytest.raises(RuntimeError, match="before a rank has joined"):
        distributed.scatter(tensor(7), None, src=0)
    with pytest.raises(RuntimeError, match="before a rank has joined"):
        distributed.all_to_all_single(torch.zeros(SIZE), torch.zeros(SIZE))


def test_a_model_can_be_built_and_trained_on_it():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    before = model[0].weight.detach().clone()
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    for _ in range(2):
        wrapped(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.equal(model[0].weight, before)


def test_its_gradients_are_those_of_equal_ranks():
    model = torch.nn.Linear(2, 1, bias=False)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    wrapped(tensor(1, 2)).sum().backward()
    assert model.weight.grad.tolist() == [[pytest.approx(1), pytest.approx(2)]]
