"""The ways that gradients take from rank to rank: KungFu's topologies, as trees and a ring.

A tree is a list of the parents of its ranks; that of its root is ``None``. Each piece of the
gradients is added up along a tree of its own to its root, and passed down again (Mai et al., OSDI
2020, section 5). Ranks of one host are numbered one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Tree = list[int | None]


def build_trees(name: str, hosts: Sequence[int]) -> list[Tree]:
    """Return the trees of a topology; each is for a piece of the gradients.

    Args:
        name: ``star``, ``multi-star``, ``clique``, ``tree``, ``binary-tree``, ``binary-tree-star``
            or ``multi-binary-tree-star``.
        hosts: The number of ranks on each host.
    """
    count = sum(hosts)
    heads = [sum(hosts[:host]) for host in range(len(hosts))]  # the first rank of each host
    if name in {"star", "clique", "multi-star"}:
        roots = {"star": [0], "clique": range(count), "multi-star": heads}[name]
        return [[None if rank == root else root for rank in range(count)] for root in roots]
    if name == "binary-tree":
        return [_binary(list(range(count)))]
    several = name == "multi-binary-tree-star"
    grow = _flat if name == "tree" else _binary
    turned = [[*heads[k:], *heads[:k]] for k in range(len(heads) if several else 1)]
    return [_with_hosts(grow(order), hosts, heads) for order in turned]


def _flat(order: list[int]) -> Tree:
    """Return the tree over the first ranks of the hosts whose root is the parent of all."""
    parents: Tree = [None] * (max(order) + 1)
    for rank in order[1:]:
        parents[rank] = order[0]
    return parents


def _binary(order: list[int]) -> Tree:
    parents: Tree = [None] * (max(order) + 1)
    for place, rank in enumerate(order[1:], start=1):
        parents[rank] = order[(place - 1) // 2]
    return parents


def _with_hosts(parents: Tree, hosts: Sequence[int], heads: Sequence[int]) -> Tree:
    """Return the tree with all ranks: those of a host are children of its first."""
    tree: Tree = []
    for head, count in zip(heads, hosts, strict=True):
        tree += [parents[head], *([head] * (count - 1))]
    return tree


def spanning_tree(latencies_s: Sequence[Sequence[float]]) -> Tree:
    """Return the minimum spanning tree of a matrix of latencies, with rank 0 as its root (Prim)."""
    parents: Tree = [None] * len(latencies_s)
    nearest = {rank: (latencies_s[0][rank], 0) for rank in range(1, len(latencies_s))}
    while nearest:
        rank = min(nearest, key=lambda each: (nearest[each], each))
        parents[rank] = nearest.pop(rank)[1]
        for other, best in nearest.items():
            nearest[other] = min(best, (latencies_s[rank][other], rank))
    return parents
