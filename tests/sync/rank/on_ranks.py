"""Trains models whose ranks agree in other ways than by an all-reduce; each function is a case.

A case raises if a value differs from one that is computed by hand, on any rank.
"""

from __future__ import annotations

import gc
import itertools
import os
import socket
import sys
import threading
import time
import weakref
from datetime import timedelta
from typing import get_args

import numpy as np
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from zeusrun.sync.rank import agent, vote
from zeusrun.sync.section import Sync, Topology
from zeusrun.worker.hooks.install import installed_hooks

torch.set_num_threads(1)
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TOPOLOGIES = get_args(Topology)
RATE, FEATURES = 0.1, 6
agent._SAVED = 5
CHECK = vote.CHECK = 8  # shorter, and as long as the steps between two averages


def build(layers=None, **section):
    """Return a model whose ranks agree as a section ``sync`` says."""
    installed_hooks().parts["sync"]._given = Sync(**section).model_dump()
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


def synced_of(model):
    return installed_hooks().parts["sync"]._models[model]


def settle(model):
    """Let the ranks average what they would average before the next forward pass."""
    installed_hooks().parts["sync"].before_forward(model)


def case_post_local_sgd_is_that_of_numpy():
    model, optimizer = build(every=3, warmup=2)
    train(model, optimizer, 9)
    expected = first_weights()
    for step in range(9):
        if step > 2 and (step - 2) % 3 == 0:
            expected = np.tile(expected.mean(0), (RANKS, 1))
        own = gradients(expected, step)
        expected = expected - RATE * (own.mean(0) if step < 2 else own)
    assert np.abs(of_all(model) - expected).max() < 1e-5
    assert np.ptp(expected, axis=0).max() > 1e-3  # the ranks differ


def case_the_end_of_a_pass_over_the_training_data_averages():
    loader = torch.utils.data.DataLoader(range(5))
    model, optimizer = build(every=4, warmup=2)
    for epoch in range(3):
        for step in loader:
            train(model, optimizer, 1, first=int(step))
        apart = np.ptp(of_all(model), axis=0).max()
        assert (apart == 0) == (epoch > 0)  # once they have averaged, they know their loaders
    train(model, optimizer, 1)
    assert np.ptp(of_all(model), axis=0).max() > 1e-4
    if RANK == 0:  # evaluations on one rank, which the others do not wait for
        list(loader)
        list(torch.utils.data.DataLoader(range(3)))
        with torch.no_grad():
            model(batch(0)[0])
        model.eval()
        model(batch(0)[0])
        model.train()


def case_the_end_that_a_prefetcher_meets_before_its_last_step_averages_after_it():
    loader = torch.utils.data.DataLoader(range(5))
    model, optimizer = build(every=4, warmup=2)
    for epoch in range(3):
        batches = iter(loader)
        step = next(batches)
        while step is not None:
            following = next(batches, None)
            train(model, optimizer, 1, first=int(step))
            step = following
        assert next(batches, None) is None  # as apex's preloads again
        assert (np.ptp(of_all(model), axis=0).max() == 0) == (epoch > 0)


def case_ranks_that_read_other_data_do_not_wait_at_their_end():
    model, optimizer = build(every=2, warmup=2)
    loader = torch.utils.data.DataLoader(range(6 if RANK == 0 else 9))
    batches = iter(loader)
    for step in range(6):
        next(batches)
        train(model, optimizer, 1, first=step)
    if RANK == 0:
        assert list(batches) == []


def case_an_earlier_model_is_left_alone():
    """As in folds: the first ends by a break, and lives on at the first rank."""
    loader, kept = torch.utils.data.DataLoader(range(12)), []
    for fold in range(2):
        model, optimizer = build(every=2, warmup=2)
        if RANK == 0:
            kept.append(model)
        for step in loader:
            train(model, optimizer, 1, first=int(step))
            if fold == 0 and step == 6:
                break
    assert np.ptp(of_all(model), axis=0).max() == 0


def case_an_evaluation_with_gradients_on_one_rank_waits_for_nobody():
    model, optimizer = build(every=2, warmup=2)
    train(model, optimizer, 4)
    if RANK == 0:
        model.eval()
        model(batch(0)[0])
        model.train()
    distributed.barrier()
    model.eval()  # as with frozen layers
    train(model, optimizer, 9, first=4)  # the one before ``eval`` counts with the next one
    settle(model)
    assert np.ptp(of_all(model), axis=0).max() == 0


def case_training_in_another_thread_agrees():
    model, optimizer = build(every=2, warmup=2)

    def run():
        loader = torch.utils.data.DataLoader(range(5))
        for _ in range(2):
            for step in loader:
                train(model, optimizer, 1, first=int(step))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert np.ptp(of_all(model), axis=0).max() == 0


def case_numbers_that_never_change_stay_as_they_are():
    class Masked(torch.nn.Linear):
        def __init__(self):
            super().__init__(FEATURES, 1, bias=False)
            self.register_buffer("mask", torch.full((3,), -torch.inf))
            self.register_buffer("scale", torch.tensor([0.1, 1 / 3, 7e-5]))

        def forward(self, inputs):
            return super().forward(inputs) + self.mask.exp().sum() + 0 * self.scale.sum()

    for section in ({"method": "sma"}, {"method": "pair"}, {"every": 2, "warmup": 2}):
        model, optimizer = build(Masked, **section)
        train(model, optimizer, 8)
        assert model.module.mask.tolist() == [-np.inf] * 3, section
        assert model.module.scale.tolist() == torch.tensor([0.1, 1 / 3, 7e-5]).tolist(), section


def case_sma_is_that_of_numpy_and_its_end_is_synchronous():
    model, optimizer = build(method="sma", alpha=0.25, switch_at=5)
    expected = first_weights()
    for step in range(8):
        train(model, optimizer, 1, first=step)
        settle(model)
        own = gradients(expected, step)
        if step < 5:
            expected = expected - RATE * own
            expected += (0.25 if step < 4 else 1.0) * (expected.mean(0) - expected)
        else:
            expected = expected - RATE * own.mean(0)
        rows = of_all(model)
        assert np.abs(rows - expected).max() < 1e-5, step
        assert (np.ptp(rows, axis=0).max() < 1e-6) == (step >= 4)


def case_optimizers_have_one_state_when_gradients_are_exchanged_again():
    kinds = {
        "momentum": lambda own: torch.optim.SGD(own, lr=0.01, momentum=0.9),
        "adam": lambda own: torch.optim.Adam(own, lr=0.01),
        "adafactor": lambda own: torch.optim.Adafactor(own, lr=0.01),
    }
    for name, make in kinds.items():
        for skips in (False, True):
            model, _ = build(deep, method="sma", switch_at=4)
            optimizer = make(model.parameters())
            step = optimizer.step
            if skips and RANK == 1:  # it has no state yet when the others have
                optimizer.step = lambda: None
            train(model, optimizer, 3)
            assert np.ptp(of_all(model), axis=0).max() > 1e-5, name
            train(model, optimizer, 1, first=3)
            settle(model)
            optimizer.step = step
            train(model, optimizer, 5, first=4)
            assert np.ptp(of_all(model), axis=0).max() == 0, name


def case_a_pair_moves_to_the_middle_and_keeps_the_mean_of_all():
    model, optimizer = build(method="pair")
    pairs = pairs_of(model)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(1)  # a checkpoint that is loaded after the model is built
    expected = first_weights()[RANK] + 1
    for step in range(20):
        train(model, optimizer, 1, first=step)
        own = np.tile(expected, (RANKS, 1))
        expected = expected - RATE * gradients(own, step)[RANK]
        deadline_t = time.monotonic() + 30
        while step and not pairs._got.numel() and time.monotonic() < deadline_t:
            time.sleep(0.001)
        if step:
            expected = (expected + pairs._got.double().numpy()) / 2
        settle(model)
        assert np.abs(weights(model) - expected).max() < 1e-5, step
    distributed.barrier()
    assert pairs.averages == 19
    assert np.ptp(of_all(model), axis=0).max() < 0.5


def pairs_of(model):
    return synced_of(model)._way.average.__closure__[0].cell_contents


def case_a_pair_answers_no_stranger_and_ends_with_its_model():
    model, optimizer = build(method="pair")
    train(model, optimizer, 2)
    settle(model)
    port = pairs_of(model)._listener.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"0" * 16)
        assert stranger.recv(1) == b""
    distributed.barrier()
    del model, optimizer
    gc.collect()
    threads = [each for each in threading.enumerate() if each.name == "zeusrun-pairs"]
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()


def case_a_rank_without_a_step_averages_all_the_same():
    """A ``GradScaler`` skips the step of a rank whose gradients are infinite."""
    model, optimizer = build(method="sma", alpha=1, switch_at=6)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=4)
    for step in range(12):
        inputs, wanted = batch(step)
        optimizer.zero_grad()
        loss = (model(inputs) - wanted).square().mean()
        if RANK == 1 and step in {3, 4}:
            loss = loss * torch.inf
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    rows = of_all(model)
    assert np.ptp(rows, axis=0).max() < 1e-6
    assert np.isfinite(rows).all()
    scales = [None] * RANKS
    distributed.all_gather_object(scales, scaler.get_scale())
    assert len(set(scales)) == 1


def case_several_types_and_buffers_are_averaged():
    def layers():
        class Parts(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first = torch.nn.Linear(FEATURES, 8)
                self.norm = torch.nn.BatchNorm1d(8)
                self.second = torch.nn.Linear(8, 8, dtype=torch.bfloat16)
                self.last = torch.nn.Linear(8, 1, dtype=torch.float64)

            def forward(self, inputs):
                small = self.second(self.norm(self.first(inputs)).bfloat16())
                return self.last(small.double()).float()

        return Parts()

    model, optimizer = build(layers, every=2, warmup=2)
    train(model, optimizer, 4)
    means = model.module.norm.running_mean
    found = [torch.empty_like(means) for _ in range(RANKS)]
    distributed.all_gather(found, means)
    before = torch.stack(found)
    assert (before.std(0) > 1e-6).any()  # each rank has seen batches of its own
    settle(model)
    assert torch.allclose(means, before.mean(0))
    assert np.ptp(of_all(model), axis=0).max() == 0


def case_a_restart_goes_on_counting():
    sync = installed_hooks().parts["sync"]

    def way_after(passes):
        sync._built = 1000  # the number of this model in ``sync.json``
        model, optimizer = build(method="sma", switch_at=8)
        train(model, optimizer, passes)
        settle(model)
        distributed.barrier()
        return synced_of(model)._way.name

    assert way_after(5) == "sma"
    assert way_after(3) == "all-reduce"  # with five before the restart
    assert way_after(0) == "sma"
    assert way_after(5) == "all-reduce"
    assert way_after(0) == "all-reduce"


def case_a_shard_of_an_optimizer_is_refused():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model, _ = build(every=2, warmup=2)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    try:
        train(model, optimizer, 1)
    except RuntimeError as error:
        assert "take 'every', 'method' or 'on_slow' out of sync" in str(error)
    else:
        raise AssertionError("it was taken")
    installed_hooks().parts["sync"]._has_shards = False


def case_gradients_are_measured_where_their_mean_is_known():
    watch = installed_hooks().parts["watch"]
    watch._observer.samples = lambda: 8
    measured = {}
    for name, section in {
        "ring": {"topology": "ring"},
        "powersgd": {"compress": "powersgd"},
        "sma": {"method": "sma", "switch_at": 4},
    }.items():
        model, optimizer = build(**section)
        found = watch._models[model].watch
        norms = measured[name] = []
        receive = lambda each, _, norms=norms: norms.append(each)  # noqa: E731
        found._how = found._how._replace(receive=receive)
        found._size = 1
        train(model, optimizer, 8)
        found.flush()
    assert len(measured["ring"]) == 8
    assert measured["powersgd"] == []
    assert len(measured["sma"]) == 4
    assert measured["ring"][0].each > measured["ring"][0].mean > 0


def case_a_slow_network_is_answered_in_the_same_step_on_all_ranks_and_left_when_it_is_calm():
    model, _ = build(deep, on_slow="compress")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    synced, names = synced_of(model), []
    synced._seconds.take = lambda: 0.4 if 5 * CHECK <= len(names) < 15 * CHECK else 0.01
    for step in range(30 * CHECK):
        train(model, optimizer, 1, first=step)
        names.append(synced._way.name)
    of_all_ranks = [None] * RANKS
    distributed.all_gather_object(of_all_ranks, names)
    assert all(each == names for each in of_all_ranks)
    assert set(names[: 5 * CHECK]) == {"all-reduce"}
    assert names[9 * CHECK] in {"bf16", "average every 8"}
    assert "average every 8" in names[5 * CHECK : 15 * CHECK]
    assert names[-1] == "all-reduce"
    rows = of_all(model)
    assert np.ptp(rows, axis=0).max() < 1e-6


def case_a_slow_rank_is_no_slow_network():
    """The others wait for it in their all-reduces: as long as that is measured, no way is left."""
    model, optimizer = build(deep, on_slow="compress")
    synced, waited = synced_of(model), []
    take = synced._seconds.take

    def take_clearly(slow):  # a busy machine makes all ranks slow
        waited.append(take())
        return 0.06 if slow and RANK else 0.01

    for step in range(8 * CHECK):
        slow = step > 4 * CHECK
        synced._seconds.take = lambda slow=slow: take_clearly(slow)
        time.sleep(0.05 if slow and RANK == 0 else 0.0)
        train(model, optimizer, 1, first=step)
        assert synced._way.name == "all-reduce", step
    of_all_ranks = [None] * RANKS
    distributed.all_gather_object(of_all_ranks, np.median(waited[5 * CHECK :]))
    assert min(of_all_ranks) == of_all_ranks[0]


def case_a_vote_changes_the_topology():
    model, optimizer = build(topology="star", vote=True)
    synced, names = synced_of(model), []
    synced._seconds.take = lambda: 0.1 if len(names) >= 4 * CHECK else 0.01
    for step in range(8 * CHECK):
        train(model, optimizer, 1, first=step)
        names.append(synced._way.name)
    assert set(names[: 4 * CHECK]) == {"star"}
    assert "auto" in names
    assert np.ptp(of_all(model), axis=0).max() == 0


def case_models_are_gone_with_the_script_and_joins_are_refused():
    ways = ({"topology": "ring"}, {"every": 2}, {"method": "sma"}, {"method": "pair"})
    models = [weakref.ref(build(**way)[0]) for way in ways]
    gc.collect()
    assert [model() for model in models] == [None] * len(ways)
    model, _ = build(topology="ring")
    try:
        with model.join():
            raise AssertionError("it was taken")
    except RuntimeError as error:
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
