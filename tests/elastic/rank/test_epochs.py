"""Data divided anew between two epochs of an unedited script, without processes."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lazily import Lazily
from zeusrun.elastic.rank.sizes import Scale
from zeusrun.sidecar.plan import RankPlan

torch = Lazily("torch")
data = Lazily("torch.utils.data")
epochs_module = Lazily("zeusrun.elastic.rank.agent")


class Loaders(dict):
    """The part of a board that has the batch sizes of loaders; of one run."""

    def read_loader(self, number):
        return self.get(number, (0, 0))

    def write_loader(self, number, whole, share):
        self[number] = whole, share


class Script:
    """A rank of an unedited script, and how its ranks change.

    Attributes:
        begun: Number and epoch of each pass that the member was told of.
        following: The ranks from the next pass on: rank and number of ranks.
    """

    def __init__(self, rank=0, size=2, board=None, **given):
        self.environment = SimpleNamespace(rank=rank, world_size=size, plan=RankPlan(), share=None)
        self.board, self.is_alone = Loaders() if board is None else board, False
        self.scale = Scale({"ranks": size, **given}, self.environment)
        self.begun, self.following = [], None
        self.epochs = epochs_module.Epochs(self.environment, self)

    def refuse(self, why):
        self.refused = why

    def begin_epoch(self, loader, epoch, *, is_training):
        self.begun.append((loader, epoch))
        if is_training and self.following is not None:
            (self.environment.rank, self.environment.world_size) = self.following
            self.following = None

    def loader(self, total=20, batch_size=4, rank=None, size=None, **options):
        environment = self.environment
        sampler = data.DistributedSampler(
            range(total),
            environment.world_size if size is None else size,
            environment.rank if rank is None else rank,
            **options,
        )
        return data.DataLoader(range(total), batch_size, sampler=sampler)

    def begin(self, loader, *, is_training=True):
        return self.epochs.begin(loader, is_training=is_training)


sizes = st.integers(1, 9)


@given(
    st.integers(1, 60), st.lists(sizes, min_size=2, max_size=5), st.booleans(), st.booleans(),
    st.data(),
)  # fmt: skip
def test_data_is_divided_as_by_a_new_sampler(total, path, drop_last, shuffle, choice):
    options = {"drop_last": drop_last, "shuffle": shuffle}
    script = Script(0, path[0])
    loader = script.loader(total, **options)
    script.begin(loader)
    for epoch, size in enumerate(path[1:], 1):
        before = script.environment.rank, script.environment.world_size
        after = script.following = choice.draw(st.integers(0, size - 1)), size
        assert script.begin(loader) == (after != before)
        rank = script.environment.rank
        fresh = data.DistributedSampler(range(total), size, rank, **options)
        for sampler in (loader.sampler, fresh):
            sampler.set_epoch(epoch)
        assert len(loader.sampler) == len(fresh)
        assert loader.sampler.total_size == fresh.total_size
        assert list(loader.sampler) == list(fresh)


@given(st.integers(1, 64), st.integers(1, 9), st.lists(sizes, min_size=1, max_size=5))
def test_the_batch_size_over_all_ranks_stays_as_far_as_it_can(each, first, path):
    script = Script(0, first)
    loader = script.loader(200, each)
    script.begin(loader)
    for size in path:
        script.following = (0, size)
        script.begin(loader)
        assert loader.batch_sampler.batch_size == max(1, each * first // size)
        assert len(next(iter(loader))) == min(loader.batch_sampler.batch_size, len(loader.sampler))


def test_a_batch_size_that_is_scaled_stays_on_each_rank():
    script = Script(0, 2, batch_size="scaled")
    loader = script.loader(200, 4)
    script.begin(loader)
    for size in (3, 1, 4):
        script.following = (0, size)
        assert script.begin(loader)
        assert loader.batch_sampler.batch_size == 4


@pytest.mark.parametrize("own", [50 // 4, 25], ids=["divides by the ranks", "fixed"])
@pytest.mark.parametrize(("batch_size", "expected"), [("kept", 50 // 4), ("scaled", 25)])
def test_with_other_ranks_from_its_start_a_script_gets_the_batch_size_that_it_had(
    own, batch_size, expected
):
    first = Script(0, 2, batch_size=batch_size)
    first.begin(first.loader(200, 25))
    later = Script(0, 2, board=first.board, batch_size=batch_size)
    later.environment.world_size = 4
    loader = later.loader(200, own)
    later.begin(loader)
    assert loader.batch_sampler.batch_size == expected


def test_another_batch_size_of_the_script_is_left_to_it():
    script = Script(0, 2)
    script.begin(script.loader(200, 4))
    gc.collect()
    larger = script.loader(200, 10)
    assert not script.begin(larger)
    script.following = (0, 4)
    assert script.begin(larger)
    assert larger.batch_sampler.batch_size == 5


def test_a_newcomer_that_has_not_joined_divides_nothing():
    script = Script(2, 3)
    script.is_alone = True
    loader = script.loader(200, 4)
    assert not script.begin(loader)
    assert (script.board, loader.batch_sampler.batch_size) == ({}, 4)


def test_a_pass_says_whether_its_data_is_divided_anew():
    script = Script()
    loader = script.loader()
    assert not script.begin(loader)
    script.following = (0, 3)
    assert script.begin(loader)
    assert not script.begin(loader)


def test_another_rank_among_as_many_has_other_data():
    script = Script(2, 4)
    loader = script.loader(shuffle=False)
    script.begin(loader)
    script.following = (3, 4)
    assert script.begin(loader)
    assert list(loader.sampler) == list(range(3, 20, 4))


def test_another_loader_is_divided_when_it_begins_next():
    script = Script()
    training, evaluation = script.loader(), script.loader(shuffle=False)
    script.begin(training)
    script.begin(evaluation, is_training=False)
    script.following = (1, 3)
    assert script.begin(training)
    assert evaluation.sampler.num_replicas == 2
    assert script.begin(evaluation, is_training=False)
    assert list(evaluation.sampler) == [*range(1, 20, 3)]


def test_a_loader_that_was_built_after_the_change_stays_as_it_is():
    script = Script()
    script.begin(script.loader())
    script.following = (0, 4)
    script.begin(script.loader())
    loader = script.loader(batch_size=7)
    assert not script.begin(loader)
    assert (loader.sampler.num_replicas, loader.batch_sampler.batch_size) == (4, 7)


def test_one_that_was_built_later_with_the_ranks_of_the_start_is_divided_anew():
    script = Script()
    script.begin(script.loader())
    script.following = (0, 4)
    script.begin(script.loader())
    loader = script.loader(batch_size=8, rank=0, size=2)  # the script has kept the number
    assert script.begin(loader)
    assert (loader.sampler.num_replicas, loader.batch_sampler.batch_size) == (4, 4)


def test_data_that_is_not_divided_among_the_ranks_stays_whole():
    script = Script()
    loader = script.loader(rank=0, size=1)
    script.begin(loader)
    script.following = (0, 4)
    assert not script.begin(loader)
    assert list(loader.sampler) != []
    assert loader.sampler.num_replicas == 1


def loaders_of_another_kind():
    sampler = data.DistributedSampler(range(20), 2, 0)
    fake = SimpleNamespace(num_replicas=2, rank=0)
    return {
        "no sampler": data.DataLoader(range(20), 4),
        "no batches": data.DataLoader(range(20), None, sampler=sampler),
        "own batches": data.DataLoader(range(20), batch_sampler=data.BatchSampler(sampler, 4, drop_last=False)),
        "own sampler": SimpleNamespace(sampler=fake, batch_sampler=None),
        "no loader": object(),
    }  # fmt: skip


@pytest.mark.parametrize(
    "kind", ["no sampler", "no batches", "own batches", "own sampler", "no loader"]
)
def test_with_another_loader_nothing_changes(kind):
    script = Script()
    script.following = (0, 3)
    assert not script.begin(loaders_of_another_kind()[kind])
    assert script.begun == []
    assert script.environment.world_size == 2


def test_passes_are_counted_by_loader_or_by_the_epoch_of_the_script():
    script = Script()
    training, evaluation = script.loader(), script.loader()
    for epoch in (0, 1, 5):
        training.sampler.set_epoch(epoch)
        script.begin(training)
        script.begin(evaluation, is_training=False)
    assert script.begun == [(1, 1), (2, 1), (1, 2), (2, 2), (1, 6), (2, 3)]


def test_a_loader_that_the_script_builds_for_each_epoch_keeps_its_number():
    script = Script()
    evaluation = None
    for _ in range(3):
        training = script.loader()
        script.begin(training)
        evaluation = evaluation or script.loader(batch_size=10)
        script.begin(evaluation, is_training=False)
        del training
        gc.collect()
    assert script.begun == [(1, 1), (2, 1), (1, 2), (2, 2), (1, 3), (2, 3)]


def test_a_loader_never_gets_the_batch_size_of_another_one():
    script = Script()
    first, evaluation = script.loader(), script.loader(batch_size=10)
    script.begin(first)
    script.begin(evaluation, is_training=False)
    del first
    gc.collect()
    training = script.loader()
    script.begin(training)
    script.following = (0, 4)
    assert script.begin(training)
    assert script.begin(evaluation, is_training=False)
    assert (training.batch_sampler.batch_size, evaluation.batch_sampler.batch_size) == (2, 5)
