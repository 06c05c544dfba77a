"""Trains models that FSDP2 shards over several ranks, and checks every value against DDP's.

Each function is a case: it raises if a value is wrong, on any rank.
"""

from __future__ import annotations

import contextlib
import copy
import itertools

import torch
from ddp_cases import (
    RANK,
    RANKS,
    SHARE,
    batch,
    check,
    close,
    loss_of,
    over_ranks,
    receive_in,
    train,
    watch,
)
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel

from zeusrun.worker.stats import fsdp as fsdp_module
from zeusrun.worker.stats import model as model_module
from zeusrun.worker.stats import watch as watch_module


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(10, 33), torch.nn.Tanh(), torch.nn.Linear(33, 33), torch.nn.Linear(33, 1)
    )  # 33 and 1 rows do not divide by the ranks: there is padding


def shard(model, **options):
    for layer in (model[0], model[2]):
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def attach(model):
    """Run forward once, as that decides which module is the root; return what is measured."""
    with torch.no_grad():
        model(torch.zeros(1, 10))
    model.reshard()
    steps = []
    if watch._models[model].watch is not None:
        watch._models[model].watch._receive = receive_in(steps)
    return steps


def pair(**options):
    """Return a sharded model, and the same one with DDP, with what is measured of each."""
    ddp = DistributedDataParallel(network())
    expected = []
    watch._models[ddp].watch._receive = receive_in(expected)
    model = shard(network(), **options)
    return model, attach(model), ddp, expected


@contextlib.contextmanager
def attached_by(attaches):
    kept, watch.attach_sharded = watch.attach_sharded, attaches
    yield
    watch.attach_sharded = kept


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.05)


def flush(*models):
    for model in models:
        watch._models[model].watch.flush()


def problem_of(model):
    return watch._models[model]._problem


def whole(model):
    return torch.cat(
        [getattr(p, "full_tensor", lambda p=p: p)().flatten() for p in model.parameters()]
    )


def check_steps(steps, expected, count, tolerance=1e-4):
    if not len(steps) == len(expected) == count:
        raise ValueError(f"{len(steps)} and {len(expected)} steps")
    for step, other in zip(steps, expected, strict=True):
        close(step.norms.each, other.norms.each, tolerance)
        close(step.norms.mean, other.norms.mean, tolerance)
        close(step.norms.inverse, other.norms.inverse)
        if step.norms.ranks != RANKS:
            raise ValueError(str(step))


def case_sharded_norms_are_those_of_ddp():
    known = len(watch._models)
    model, steps, ddp, expected = pair()
    if len(watch._models) != known + 2:
        raise ValueError("more than one record of a sharded model")
    for each in (model, ddp):
        train(each, sgd(each), 5)
    if len(steps) != 4:  # a step is received at the next one, on every rank
        raise ValueError(f"{len(steps)} steps")
    flush(model, ddp)
    check_steps(steps, expected, 5)
    found = [None] * RANKS
    distributed.all_gather_object(found, [tuple(step.norms) for step in steps])
    if any(each != found[0] for each in found):
        raise ValueError(str(found))


def case_sharded_weights_are_the_same_to_the_last_bit():
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for options in ({}, {"reshard_after_forward": False}, {"mp_policy": half}):
        found = []
        for attaches in (lambda _: None, watch.attach_sharded):
            model = shard(network(), **options)
            with attached_by(attaches):
                train(model, sgd(model), 12)
            found.append(whole(model))
        if not watch._models[model].watch._count == 12:
            raise ValueError("not watched")
        if not torch.equal(*found):
            raise ValueError(f"{options}: {(found[0] - found[1]).abs().max()}")


def case_sharded_accumulation():
    model, steps, ddp, expected = pair()
    for each in (model, ddp):
        watch._models[each].watch._samples = lambda: 2 * SHARE
    with ddp.no_sync():
        loss_of(ddp, batch(0)).backward()
    loss_of(ddp, batch(1)).backward()
    model.set_requires_gradient_sync(False)
    loss_of(model, batch(0)).backward()
    model.set_requires_gradient_sync(True)
    loss_of(model, batch(1)).backward()
    flush(model, ddp)
    check_steps(steps, expected, 1)


def case_sharded_accumulation_that_communicates_each_time_counts_once():
    model, steps, ddp, expected = pair()
    for each in (model, ddp):
        optimizer = sgd(each)
        for _ in range(2):
            for number in range(3):
                loss_of(each, batch(number)).backward()
            optimizer.step()
            optimizer.zero_grad()
    flush(model, ddp)
    check_steps(steps, expected, 2)


def case_sharded_loss_scale_is_removed():
    model, steps, ddp, expected = pair()
    train(ddp, sgd(ddp))
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    sharded = ShardedGradScaler("cpu", init_scale=4096.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    for each in (scaler, sharded):
        optimizer.zero_grad()
        each.scale(outputs=loss_of(model, batch(0))).backward()
        each.step(optimizer)
        each.update()
    flush(model, ddp)
    check_steps(steps, 2 * expected, 2)


def case_sharded_in_bfloat16():
    model, steps, ddp, expected = pair(mp_policy=MixedPrecisionPolicy(torch.bfloat16))
    for each in (model, ddp):
        train(each, sgd(each))
    flush(model, ddp)
    check_steps(steps, expected, 1, tolerance=0.03)


def case_sharded_in_one_group_with_frozen_layers():
    model = network()
    model[0].requires_grad_(False)
    plain = copy.deepcopy(model)
    fully_shard(model[0])
    fully_shard(model)
    model.unshard()  # as scripts do that want to overlap it
    steps = attach(model)
    loss_of(plain, batch(0)).backward()
    own = torch.cat([p.grad.flatten() for p in plain.parameters() if p.requires_grad]).double()
    train(model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05))
    flush(model)
    check(steps[0], over_ranks(own))


def case_sharded_only_every_so_many_steps():
    model = shard(network())
    steps = attach(model)
    watch._models[model].watch._interval = 4
    train(model, sgd(model), 9)
    flush(model)
    if len(steps) != 3:
        raise ValueError(f"{len(steps)} steps")


def case_a_rank_that_skips_a_step_of_a_sharded_model():
    model = shard(network())
    steps = attach(model)
    optimizer = sgd(model)
    for number in range(4):
        optimizer.zero_grad()
        loss_of(model, batch(number)).backward()
        if number != 1 or RANK:
            optimizer.step()
    flush(model)
    if len(steps) != 3:
        raise ValueError(f"{len(steps)} steps")


def case_an_error_on_one_rank_of_a_sharded_model():
    model = shard(network())
    steps = attach(model)
    optimizer, square = sgd(model), fsdp_module.squared_norm
    for fails in (0, 1, 3):
        calls = itertools.count()

        def squared_norm(flat, fails=fails, calls=calls):
            if next(calls) == fails and RANK == 1:
                raise RuntimeError("out of memory")
            return square(flat)

        fsdp_module.squared_norm = squared_norm
        train(model, optimizer, 2)
    fsdp_module.squared_norm = square
    flush(model)
    if (problem_of(model) is None) == (RANK == 1) or len(steps) > 6:
        raise ValueError(f"{problem_of(model)}, {len(steps)} steps")


def case_a_sharded_optimizer_within_the_backward_pass():
    model, steps, ddp, expected = pair()
    train(ddp, sgd(ddp), 3)
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], 0.05)

        def step(_, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    for number in range(3):
        loss_of(model, batch(number)).backward()
    flush(model, ddp)
    check_steps(steps, expected, 3)


def case_sharded_passes_that_are_incomplete_are_refused():
    model = shard(network())
    steps = attach(model)
    optimizer = sgd(model)
    for _ in range(12):
        model[0](batch(0)[0]).sum().backward()
        loss_of(model, batch(0)).backward()
        optimizer.step()
        optimizer.zero_grad()
    flush(model)
    if steps or "exactly once" not in problem_of(model):
        raise ValueError(f"{steps} {problem_of(model)}")


def summed(model):
    for each in shard(model).modules():
        if isinstance(each, FSDPModule):
            each.set_force_sum_reduction_for_comms(True)


def replicated(model):
    shard(model, mesh=init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("replicas", "shards")))


def with_own_reduce_scatter(model):
    class Own(collectives.DefaultReduceScatter):
        pass

    shard(model).set_custom_reduce_scatter(Own())


OTHERWISE = (
    (summed, "not averaged in one step"),
    (lambda model: shard(model.double()), "not averaged in one step"),
    (replicated, "HSDP"),
    (with_own_reduce_scatter, "of its own"),
    (lambda model: shard(model).set_all_reduce_hook(lambda _: None), "of its own"),
    (lambda model: fully_shard(model, ignored_params=set(model[3].parameters())), "ignores"),
)


def case_a_hook_that_comes_later_is_refused():
    model = shard(network())
    steps = attach(model)
    train(model, sgd(model), 2)
    model.set_all_reduce_hook(lambda reduced: reduced.zero_())
    train(model, sgd(model), 3)
    flush(model)
    if len(steps) != 2 or "of its own" not in problem_of(model):
        raise ValueError(f"{len(steps)} {problem_of(model)}")


def case_a_compiled_sharded_model():
    model, steps, ddp, expected = pair()
    compiled = torch.compile(model, backend="eager")
    loss_of(compiled, batch(0)).backward()
    train(ddp, sgd(ddp))
    flush(model, ddp)
    check_steps(steps, expected, 1)


def case_other_ways_to_shard_are_refused_and_train():
    for change, words in OTHERWISE:
        weights = []
        for attaches in (lambda _: None, watch.attach_sharded):
            model = network()
            change(model)
            with attached_by(attaches):
                optimizer = sgd(model)
                for number in range(2):
                    optimizer.zero_grad()
                    data = [part.to(model[0].weight.dtype) for part in batch(number)]
                    loss_of(model, data).backward()
                    optimizer.step()
            weights.append(whole(model))
        if not torch.equal(*weights):
            raise ValueError(f"{words}: other weights")
        if words not in (problem_of(model) or "") or watch._models[model]._values:
            raise ValueError(f"{words}: {problem_of(model)} {watch._models[model]._values}")


def case_a_model_of_fsdp_1_beside_a_watched_one_is_named():
    flat = FullyShardedDataParallel(network(), device_id=torch.device("cpu"))
    ddp = DistributedDataParallel(network())
    told = []
    report, watch._has_told = model_module.Model.report_problem, False
    model_module.Model.report_problem = lambda _, problem: told.append(problem)
    for model in (ddp, flat, flat):
        train(model, sgd(model), 2)
    model_module.Model.report_problem = report
    if told != [watch_module.SHARDED] or watch._models[ddp]._problem is not None:
        raise ValueError(f"{told} {watch._models[ddp]._problem}")
