"""The batches of an epoch in which ranks come and go, without processes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.lazily import Lazily

torch = Lazily("torch")
loader = Lazily("zeusrun.worker.batches")

sizes = st.integers(1, 6)


class Group:
    """The batches of all ranks, which step together.

    Attributes:
        seen: The samples of the completed steps.
        steps: The number of samples in each of them, over all ranks.
        repeated: Samples that a rank had beside another one, because there were too few.
    """

    def __init__(self, total, global_batch_size, ranks, *, micro=None, drop_last=False, order=None):
        self.order = torch.arange(total) if order is None else torch.tensor(order)
        self.total, self.size, self.drop_last, self.micro = (
            total,
            global_batch_size,
            drop_last,
            micro,
        )
        self.seen, self.steps, self.repeated = [], [], 0
        self.position = 0
        self.regroup(ranks)

    def regroup(self, ranks):
        """Continue with other ranks at the same position."""
        self.ranks = [self._batches(rank, ranks) for rank in range(ranks)]
        self.iterators = [iter(batches) for batches in self.ranks]

    def _batches(self, rank, ranks):
        batches = loader.Batches(self.total, rank, ranks, drop_last=self.drop_last)
        batches.global_batch_size, batches.micro_batch_size = self.size, self.micro
        batches.begin(self.order)
        batches.position = self.position
        return batches

    @property
    def is_over(self):
        (over,) = {batches.is_over for batches in self.ranks}
        return over

    def step(self):
        """Make a step on all ranks."""
        parts, counts = [], set()
        for batches, iterator in zip(self.ranks, self.iterators, strict=True):
            own, weight = [], 0.0
            while True:
                own += next(iterator)
                micro = batches.planned.popleft()
                weight += micro.weight
                counts.add((micro.end, micro.step_samples))
                if micro.is_last:
                    break
            assert own  # else the others would wait for its gradients
            assert abs(weight - 1) < 1e-9
            parts.append(own)
        ((end, samples),) = counts
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        found = [sample for part in parts for sample in part]
        assert len(set(found)) == samples
        self.repeated += len(found) - samples
        assert samples >= len(parts) or len(found) == len(parts)
        self.seen += set(found)
        self.steps.append(samples)
        self.position = end
        for batches in self.ranks:
            batches.position = end


@given(st.integers(6, 200), st.integers(6, 40), sizes, st.data())
def test_each_sample_comes_once_whoever_trains(total, global_batch_size, ranks, data):
    order = data.draw(st.permutations(range(total)))
    group = Group(total, global_batch_size, ranks, order=order)
    while not group.is_over:
        group.step()
        rest = group.ranks[0].rest
        if data.draw(st.booleans()):
            wanted = data.draw(sizes)
            if wanted <= rest or not rest:  # as the members do
                group.regroup(wanted)
    assert sorted(group.seen) == list(range(total))
    assert group.repeated == 0


@given(st.integers(1, 100), st.integers(1, 40), sizes, st.data())
def test_nor_is_one_lost_where_fewer_samples_than_ranks_are_left(total, size, ranks, data):
    micro = data.draw(st.none() | st.integers(1, 8))
    group = Group(total, size, ranks, micro=micro)
    while not group.is_over:
        group.step()
        group.regroup(data.draw(sizes))
    assert sorted(group.seen) == list(range(total))


@given(st.integers(1, 100), st.integers(6, 40), sizes, st.data())
def test_a_step_that_is_made_again_by_the_others_has_the_same_samples(total, size, ranks, data):
    group = Group(total, size, ranks)
    while not group.is_over:
        before = group.position
        for iterator in group.iterators[: data.draw(st.integers(0, ranks))]:
            next(iterator)  # these had begun it when one was lost
        assert {batches.position for batches in group.ranks} == {before}
        ranks = max(1, ranks - data.draw(st.integers(0, 1)))
        group.regroup(ranks)
        group.step()
    assert sorted(group.seen) == list(range(total))


@given(st.integers(1, 100), st.integers(6, 40), sizes, st.data())
def test_without_the_last_step_all_steps_are_whole(total, size, ranks, data):
    group = Group(total, size, ranks, drop_last=True)
    while not group.is_over:
        group.step()
        group.regroup(data.draw(sizes))
    assert group.steps == [size] * (total // size)
    assert group.ranks[0].rest == 0
    assert sorted(group.seen) == list(range(total // size * size))


@given(st.integers(6, 200), st.integers(6, 40), sizes, st.none() | st.integers(1, 8))
def test_without_a_change_an_epoch_is_as_long_as_it_says(total, size, ranks, micro):
    group = Group(total, size, ranks, micro=micro)
    lengths = {len(batches) for batches in group.ranks}
    assert lengths == {sum(1 for _ in iterator) for iterator in group.iterators}


@given(st.integers(1, 300), st.integers(1, 9))
def test_a_whole_step_is_shared_by_all(size, ranks):
    group = Group(1000, size, ranks)
    assert sum(batches.step_samples for batches in group.ranks) == size
