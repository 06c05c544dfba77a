"""Trees over ranks, without ranks."""

from __future__ import annotations

import itertools
import random
from typing import get_args

import pytest

from zeusrun.sync.rank.topologies import build_trees, spanning_tree
from zeusrun.sync.section import Topology

NAMES = [name for name in get_args(Topology) if name not in {"auto", "ring"}]


def depth(tree, rank):
    return 0 if tree[rank] is None else 1 + depth(tree, tree[rank])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hosts", [[1], [2], [5], [1, 1], [2, 2], [3, 1, 2], [1] * 7])
def test_every_tree_has_all_ranks_and_one_root(name, hosts):
    for tree in build_trees(name, hosts):
        assert len(tree) == sum(hosts)
        assert tree.count(None) == 1
        assert all(depth(tree, rank) < len(tree) for rank in range(len(tree)))  # no cycle


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("star", [[None, 0, 0, 0]]),
        ("multi-star", [[None, 0, 0, 0], [2, 2, None, 2]]),
        ("clique", [[None, 0, 0, 0], [1, None, 1, 1], [2, 2, None, 2], [3, 3, 3, None]]),
        ("tree", [[None, 0, 0, 2]]),
        ("binary-tree", [[None, 0, 0, 1]]),
        ("binary-tree-star", [[None, 0, 0, 2]]),
        ("multi-binary-tree-star", [[None, 0, 0, 2], [2, 0, None, 2]]),
    ],
)
def test_topologies_of_two_hosts_with_two_ranks(name, expected):
    assert build_trees(name, [2, 2]) == expected


def test_a_binary_tree_of_hosts_is_as_flat_as_it_can_be():
    (tree,) = build_trees("binary-tree-star", [2] * 7)
    assert max(depth(tree, rank) for rank in range(14)) == 3  # two between hosts, one within


def weight(tree, latencies):
    return sum(latencies[rank][parent] for rank, parent in enumerate(tree) if parent is not None)


@pytest.mark.parametrize("seed", range(20))
def test_no_tree_has_less_latency_than_the_spanning_tree(seed):
    chance, size = random.Random(seed), 5
    latencies = [[0.0] * size for _ in range(size)]
    for one, other in itertools.combinations(range(size), 2):
        latencies[one][other] = latencies[other][one] = chance.random()
    found = spanning_tree(latencies)
    every = ([None, *parents] for parents in itertools.product(range(size), repeat=size - 1))

    def is_tree(tree):
        for rank in range(size):
            at, turns = rank, 0
            while tree[at] is not None and turns < size:
                at, turns = tree[at], turns + 1
            if tree[at] is not None:
                return False
        return True

    assert is_tree(found)
    least = min(weight(tree, latencies) for tree in every if is_tree(tree))
    assert weight(found, latencies) == pytest.approx(least)
