"""Trains models whose ranks agree in other ways than by an all-reduce; each function is a case.

A case raises if a value differs from one that is computed by hand, on any rank.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import time
import weakref
from datetime import timedelta

import numpy as np
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from zeusrun.jobfile.sync_section import Sync
from zeusrun.worker.hooks.install import installed_hooks
from zeusrun.worker.sync import vote

torch.set_num_threads(1)
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TOPOLOGIES = [
    *("auto", "star", "multi-star", "ring", "clique", "tree", "binary-tree", "binary-tree-star"),
    "multi-binary-tree-star",
]
RATE, FEATURES = 0.1, 6
CHECK = vote.CHECK = 8  # shorter, and as long as the steps between two averages


def build(layers=None, **section):
    """Return a model whose ranks agree as a section ``sync`` says."""
    installed_hooks().sync._given = Sync(**section).model_dump()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        layers() if layers else torch.nn.Linear(FEATURES, 1, bias=False), bucket_cap_mb=0.01
    )
    return model, torch.optim.SGD(model.parameters(), lr=RATE)


def batch(step, rank=RANK):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(8, FEATURES, generator=generator)
    return inputs, inputs.sum(1, keepdim=True)


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        inputs, wanted = batch(step)
        optimizer.zero_grad()
        (model(inputs) - wanted).square().mean().backward()
        optimizer.step()


def weights(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()]).double().numpy()


def of_all(model):
    """Return the weights of all ranks, one rank a row."""
    own = torch.from_numpy(weights(model))
    found = [torch.empty_like(own) for _ in range(RANKS)]
    distributed.all_gather(found, own)
    return torch.stack(found).numpy()


def first_weights():
    torch.manual_seed(0)
    return np.tile(torch.nn.Linear(FEATURES, 1, bias=False).weight.detach().numpy()[0], (RANKS, 1))


def gradients(all_weights, step):
    """Return the gradient of each rank by hand, one rank a row."""
    rows = []
    for rank, own in enumerate(all_weights):
        inputs, wanted = (each.numpy().astype(float) for each in batch(step, rank))
        rows.append(2 * inputs.T @ (inputs @ own - wanted[:, 0]) / len(inputs))
    return np.array(rows)


def deep():
    sizes = [FEATURES, 40, 50, 1]
    return torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)))


def case_every_topology_is_an_all_reduce():
    model, optimizer = build(deep, compress="none")
    train(model, optimizer, 3)
    expected = weights(model)
    for name in TOPOLOGIES:
        model, optimizer = build(deep, topology=name)
        train(model, optimizer, 3)
        rows = of_all(model)
        assert (rows == rows[0]).all(), name
        assert np.abs(rows[0] - expected).max() < 1e-5, (name, np.abs(rows[0] - expected).max())


def case_numbers_of_16_bits_are_nearly_an_all_reduce():
    for name, tolerance in (("bf16", 2e-2), ("fp16", 2e-3)):
        model, optimizer = build(compress=name)
        train(model, optimizer, 3)
        rows, expected = of_all(model), first_weights()
        for step in range(3):
            expected = expected - RATE * gradients(expected, step).mean(0)
        assert (rows == rows[0]).all(), name
        assert 0 < np.abs(rows - expected).max() < tolerance, name


def case_powersgd_begins_after_its_warmup_and_is_the_same_on_all_ranks():
    def matrix():
        return torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 64),
            *(torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)),
        )

    plain, of_plain = build(matrix, compress="none")
    model, optimizer = build(matrix, compress="powersgd", warmup=4, rank=1)
    train(plain, of_plain, 4)
    train(model, optimizer, 4)
    assert np.abs(weights(model) - weights(plain)).max() < 1e-6
    train(plain, of_plain, 1, first=4)
    train(model, optimizer, 1, first=4)
    rows = of_all(model)
    assert (rows == rows[0]).all()
    assert np.abs(rows[0] - weights(plain)).max() > 1e-6  # one column of a matrix is left


def case_gradients_are_measured_where_their_mean_is_known():
    watch = installed_hooks().watch
    watch._observer.samples = lambda: 8
    measured = {}
    for name, section in {
        "ring": {"topology": "ring"},
        "powersgd": {"compress": "powersgd"},
    }.items():
        model, optimizer = build(**section)
        found = watch._models[model].watch
        norms = measured[name] = []
        found._receive = lambda each, _, norms=norms: norms.append(each)
        found._size = 1
        train(model, optimizer, 8)
        found.flush()
    assert len(measured["ring"]) == 8
    assert measured["powersgd"] == []
    assert measured["ring"][0].each > measured["ring"][0].mean > 0


def case_a_vote_changes_the_topology():
    model, optimizer = build(topology="star", vote=True)
    synced = installed_hooks().sync._models[model]
    reduce = synced._first.reduce

    def slowly(bucket):
        time.sleep(0.1 if train_slowly else 0.01)
        return reduce(bucket)

    train_slowly = False
    synced._first = synced._way = synced._way._replace(reduce=slowly)
    train(model, optimizer, 4 * CHECK)
    assert synced._way.name == "star"
    train_slowly = True
    names = []
    for _ in range(3 * CHECK):
        train(model, optimizer, 1)
        names.append(synced._way.name)
    assert "auto" in names
    assert np.ptp(of_all(model), axis=0).max() == 0


def case_models_are_gone_with_the_script_and_backends_and_joins_are_checked():
    models = [weakref.ref(build(topology="ring")[0]) for _ in range(3)]
    gc.collect()
    assert [model() for model in models] == [None] * 3
    model, _ = build(topology="ring")
    try:
        with model.join():
            raise AssertionError("it was taken")
    except ValueError as error:
        assert "remove 'sync' from the job file" in str(error)


def case_a_script_cannot_have_a_hook_of_its_own():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model, _ = build(topology="star")
    try:
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    except RuntimeError as error:
        assert "the job file has sync: remove one of them" in str(error)
    else:
        raise AssertionError("it was taken")


if __name__ == "__main__":
    if RANKS == 4:
        os.environ["GROUP_RANK"] = str(RANK // 2)
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    for name in sys.argv[1:]:
        print(name, flush=True)
        globals()[f"case_{name}"]()
    distributed.barrier()
    distributed.destroy_process_group()
