"""Trains watched models on several ranks, and checks every value against gradients by hand.

Each function is a case: it raises if a value is wrong, on any rank.
"""

from __future__ import annotations

import copy
import itertools
import os
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from zeusrun.gradients.rank import ddp as ddp_module
from zeusrun.worker.hooks.install import installed_hooks

torch.set_num_threads(1)
RANK, RANKS, SHARE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 16
watch = installed_hooks().parts["watch"]


class Step(NamedTuple):
    norms: Any
    how: str


def receive_in(steps):
    return lambda *step: steps.append(Step(*step))


def change(meter, **how):
    meter._how = meter._how._replace(**how)


def build(seed=0, **options):
    """Return a model, the same on every rank, in several buckets, and what is measured of it."""
    torch.manual_seed(seed)
    layers = torch.nn.Sequential(
        torch.nn.Linear(10, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)
    )
    ddp = DistributedDataParallel(layers, **{"bucket_cap_mb": 0.005, **options})
    steps = []
    if ddp in watch._models:
        change(watch._models[ddp].watch, receive=receive_in(steps))
    return ddp, steps


def unwatched(**options):
    attach, watch.attach = watch.attach, lambda _: None
    try:
        return build(**options)[0]
    finally:
        watch.attach = attach


def batch(seed, size=SHARE):
    generator = torch.Generator().manual_seed(1000 * seed + RANK)
    x = torch.randn(size, 10, generator=generator)
    return x, x.sum(1, keepdim=True) + torch.randn(size, 1, generator=generator)


def loss_of(model, data, scale=1.0):
    return scale * (model(data[0]) - data[1]).square().mean()


def own_gradient(model, *datas):
    """Return this rank's gradient of the summed losses, without any communication."""
    model = copy.deepcopy(getattr(model, "module", model))
    model.zero_grad()
    for data in datas:
        loss_of(model, data).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]).double()


def over_ranks(gradient):
    found = [torch.empty_like(gradient) for _ in range(RANKS)]
    distributed.all_gather(found, gradient.contiguous())
    return torch.stack(found)


def close(value, expected, tolerance=1e-5):
    if abs(value - float(expected)) > tolerance * abs(float(expected)):
        raise ValueError(f"{value} is not {float(expected)}")


def check(step, gradients, samples=SHARE, tolerance=1e-5):
    """Compare with the gradients of all ranks, one a row."""
    close(step.norms.each, gradients.square().sum(1).mean(), tolerance)
    close(step.norms.mean, gradients.mean(0).square().sum(), tolerance)
    close(step.norms.inverse, 1 / samples)


def train(ddp, optimizer, steps=1, first=0, **options):
    for number in range(first, first + steps):
        optimizer.zero_grad(**options)
        loss_of(ddp, batch(number)).backward()
        optimizer.step()


def sgd(ddp):
    return torch.optim.SGD(ddp.parameters(), 0.05)


def flush(ddp):
    watch._models[ddp].watch.flush()


def case_norms_are_those_of_the_gradients():
    ddp, steps = build()
    expected = []
    optimizer = sgd(ddp)
    for number in range(3):
        expected.append(over_ranks(own_gradient(ddp, batch(number))))
        train(ddp, optimizer, first=number)
    flush(ddp)
    if len(steps) != 3:
        raise ValueError(f"{len(steps)} steps")
    for step, gradients in zip(steps, expected, strict=True):
        check(step, gradients)


def case_weights_are_the_same_to_the_last_bit():
    for view in (False, True):
        for to_none in (True, False):
            if view and not to_none and RANKS == 3:
                continue  # then the reducer divides
            found = []
            for make in (lambda **o: build(**o)[0], unwatched):
                ddp = make(gradient_as_bucket_view=view)
                train(ddp, sgd(ddp), 12, set_to_none=to_none)
                found.append(torch.cat([p.detach().flatten() for p in ddp.parameters()]))
            if not torch.equal(*found):
                raise ValueError(
                    f"view={view} to_none={to_none}: {(found[0] - found[1]).abs().max()}"
                )


def case_weights_are_the_same_with_several_buckets_and_accumulation():
    found = []
    for make in (lambda **o: build(**o)[0], unwatched):
        ddp = make(gradient_as_bucket_view=True)
        optimizer = sgd(ddp)
        for number in range(6):
            optimizer.zero_grad(set_to_none=False)
            with ddp.no_sync():
                loss_of(ddp, batch(number)).backward()
            loss_of(ddp, batch(number + 10)).backward()
            optimizer.step()
        found.append(torch.cat([p.detach().flatten() for p in ddp.parameters()]))
    if not torch.equal(*found):
        raise ValueError(f"{(found[0] - found[1]).abs().max()}")


def case_an_error_on_one_rank_does_not_disturb_the_others():
    ddp, steps = build()
    model = watch._models[ddp].watch
    problems, optimizer, square = [], sgd(ddp), ddp_module.squared_norm
    report = model._how.fail_here
    change(model, fail_here=lambda text: (problems.append(text), report(text)))
    for fails in (range(1, 2), range(2, 3), range(100)):  # own gradients, means, everything
        calls = itertools.count()

        def squared_norm(flat, fails=fails, calls=calls, square=square):
            if next(calls) in fails and RANK == 1:
                raise RuntimeError("out of memory")
            return square(flat)

        ddp_module.squared_norm = squared_norm
        train(ddp, optimizer, 2)
    ddp_module.squared_norm = square
    train(ddp, optimizer, 2)
    flush(ddp)
    if len(problems) != RANK % 2:
        raise ValueError(str(problems))
    weights = over_ranks(torch.cat([p.detach().flatten() for p in ddp.parameters()]))
    if not all(torch.equal(weights[0], each) for each in weights):
        raise ValueError("the ranks have different weights")
    if not 2 <= len(steps) < 8:
        raise ValueError(f"{len(steps)} steps")


def case_values_are_the_same_on_every_rank():
    ddp, steps = build()
    train(ddp, sgd(ddp), 5)
    flush(ddp)
    found = [None] * RANKS
    distributed.all_gather_object(found, [tuple(step.norms) for step in steps])
    if any(each != found[0] for each in found):
        raise ValueError(str(found))


def case_a_step_is_received_at_the_next_one_on_every_rank():
    ddp, steps = build()
    optimizer = sgd(ddp)
    for number in range(4):
        train(ddp, optimizer, first=number)
        if len(steps) != number:
            raise ValueError(f"{len(steps)} of {number}")


def case_one_all_reduce_is_for_eight_steps():
    ddp_module.STEPS = 8
    try:
        ddp, steps = build()
        seldom, few = build()
        watch._models[seldom].watch._size = 2  # as with interval 4
    finally:
        ddp_module.STEPS = 1
    expected, optimizer, received = [], sgd(ddp), []
    for number in range(20):
        expected.append(over_ranks(own_gradient(ddp, batch(number))))
        train(ddp, optimizer, first=number)
        received.append(len(steps))
    flush(ddp)
    if received != [0] * 8 + [8] * 8 + [16] * 4:
        raise ValueError(str(received))
    for step, gradients in zip(steps, expected, strict=False):
        check(step, gradients)
    train(seldom, sgd(seldom), 5)
    flush(seldom)
    if len(few) != 4:
        raise ValueError(str(len(few)))


def case_accumulation_with_no_sync():
    ddp, steps = build()
    change(watch._models[ddp].watch, samples=lambda: 3 * SHARE)
    datas = [batch(number) for number in range(3)]
    with ddp.no_sync():
        for data in datas[:2]:
            loss_of(ddp, data).backward()
    gradients = over_ranks(own_gradient(ddp, *datas))
    loss_of(ddp, datas[2]).backward()
    sgd(ddp).step()
    flush(ddp)
    check(steps[0], gradients, samples=3 * SHARE)


def case_accumulation_that_communicates_each_time_counts_once():
    ddp, steps = build()
    optimizer = sgd(ddp)
    gradients = over_ranks(own_gradient(ddp, batch(0)))
    for number in range(3):
        loss_of(ddp, batch(number)).backward()
    optimizer.step()
    optimizer.zero_grad()
    train(ddp, optimizer)
    flush(ddp)
    if len(steps) != 2:
        raise ValueError(f"{len(steps)} steps")
    check(steps[0], gradients)


def case_the_scale_of_the_loss_is_removed():
    ddp, steps = build()
    optimizer, scaler = sgd(ddp), torch.amp.GradScaler("cpu", init_scale=4096.0)
    gradients = over_ranks(own_gradient(ddp, batch(0)))
    scaler.scale(loss_of(ddp, batch(0))).backward()
    scaler.step(optimizer)
    scaler.update()
    flush(ddp)
    check(steps[0], gradients)


def case_a_step_that_overflows_is_not_counted():
    ddp, _ = build()
    model = watch._models[ddp]
    change(model.watch, receive=model.add)
    optimizer, scaler = sgd(ddp), torch.amp.GradScaler("cpu", init_scale=1e38)
    for number in range(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(ddp, batch(number), 1e10)).backward()
        scaler.step(optimizer)
        scaler.update()
    flush(ddp)
    model.finish()
    if model._values or model._problem != "nothing was measured: the gradients are infinite or NaN":
        raise ValueError(f"{model._values} {model._problem}")


def case_a_rank_that_skips_a_step():
    ddp, steps = build()
    optimizer = sgd(ddp)
    for number in range(6):
        optimizer.zero_grad()
        loss_of(ddp, batch(number)).backward()
        if number != 1 or RANK:
            optimizer.step()
    flush(ddp)
    if len(steps) != 5:
        raise ValueError(f"{len(steps)} steps")


def case_ranks_may_have_batches_of_different_sizes():
    ddp, steps = build()
    size = SHARE // (RANK + 1)
    change(watch._models[ddp].watch, samples=lambda: size)
    gradients = over_ranks(own_gradient(ddp, batch(0, size)))
    loss_of(ddp, batch(0, size)).backward()
    flush(ddp)
    check(steps[0], gradients, samples=1 / (sum(range(1, RANKS + 1)) / SHARE / RANKS))


def case_a_rank_without_samples_makes_the_step_unusable():
    ddp, steps = build()
    change(watch._models[ddp].watch, samples=lambda: SHARE if RANK else 0)
    train(ddp, sgd(ddp), 2)
    flush(ddp)
    if steps:
        raise ValueError(str(steps))


def case_uneven_inputs_with_join():
    ddp, steps = build()
    optimizer = sgd(ddp)
    with ddp.join():
        for number in range(2 + RANK):
            train(ddp, optimizer, first=number)
    flush(ddp)
    if len(steps) != 2:  # afterwards, one rank has no data
        raise ValueError(f"{len(steps)} steps")
    try:
        ddp.join(divide_by_initial_world_size=False)
    except RuntimeError:
        return
    raise ValueError("it divides by another number than DDP does")


def case_unused_parameters_and_static_graphs():
    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = torch.nn.Linear(10, 1), torch.nn.Linear(10, 1)

        def forward(self, x):
            return self.used(x)

    for options in ({"find_unused_parameters": True}, {"static_graph": True}):
        torch.manual_seed(0)
        ddp, steps = DistributedDataParallel(Half(), **options), []
        change(watch._models[ddp].watch, receive=receive_in(steps))
        expected = []
        optimizer = sgd(ddp)
        for number in range(3):
            model = copy.deepcopy(ddp.module.used)
            model.zero_grad()
            loss_of(model, batch(number)).backward()
            own = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
            expected.append(over_ranks(own))
            train(ddp, optimizer, first=number)
        flush(ddp)
        for step, gradients in zip(steps, expected, strict=True):
            check(step, gradients)


def case_sparse_gradients_are_refused_and_train():
    weights = []
    for attach in (watch.attach, lambda _: None):
        watched, watch.attach = watch.attach, attach
        torch.manual_seed(0)
        ddp = DistributedDataParallel(torch.nn.Embedding(20, 4, sparse=True))
        watch.attach = watched
        optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            ddp(torch.tensor([RANK, 3, 3])).square().sum().backward()
            optimizer.step()
        weights.append(ddp.module.weight.detach().clone())
    if not torch.equal(*weights):
        raise ValueError(str(weights))


def case_several_models_are_measured_separately():
    first, second = build(0), build(1)
    optimizers = [sgd(first[0]), sgd(second[0])]
    expected = [over_ranks(own_gradient(ddp, batch(0))) for ddp, _ in (first, second)]
    for (ddp, _), optimizer in zip((first, second), optimizers, strict=True):
        train(ddp, optimizer)
    for (ddp, steps), gradients in zip((first, second), expected, strict=True):
        flush(ddp)
        check(steps[0], gradients)
    indices = [watch._models[ddp].index for ddp, _ in (first, second)]
    if indices[1] != indices[0] + 1:
        raise ValueError(str(indices))


def case_clipping_comes_afterwards():
    ddp, steps = build()
    gradients = over_ranks(own_gradient(ddp, batch(0)))
    loss_of(ddp, batch(0)).backward()
    torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1e-3)
    flush(ddp)
    check(steps[0], gradients)


def case_a_script_cannot_have_a_hook_of_its_own():
    ddp, _ = build()
    builtin = distributed.BuiltinCommHookType.FP16_COMPRESS
    for register in (
        lambda: ddp.register_comm_hook(None, default_hooks.fp16_compress_hook),
        lambda: ddp._register_builtin_comm_hook(builtin),
    ):
        try:
            register()
        except RuntimeError as error:
            assert "the job file has watch" in str(error), error
        else:
            raise ValueError("it was taken")


def case_the_noise_scale_of_the_largest_model_is_used_and_of_equal_ones_that_of_the_newest():
    small = DistributedDataParallel(torch.nn.Linear(10, 1))
    kept = []
    for seed in range(2):
        kept.append(ddp := build(seed)[0])
        if watch.noise is not watch._models[ddp].noise:
            raise ValueError("another model's")
    if watch._models[small].noise is watch.noise:
        raise ValueError("the small model's")


def case_gradients_that_stay_nan_or_missing_are_reported():
    for scale, why in ((float("nan"), "infinite or NaN"), (float(RANK), "a rank has no gradients")):
        ddp, _ = build()
        model, optimizer = watch._models[ddp], sgd(ddp)
        change(model.watch, receive=model.add)
        for number in range(30):
            optimizer.zero_grad()
            loss_of(ddp, batch(number), scale).backward()
            optimizer.step()
        if why not in (model._problem or ""):
            raise ValueError(f"not reported: {why}, but {model._problem}")


def case_a_model_can_be_dropped():
    import gc
    import weakref

    gone = []
    for shared in (False, True):
        ddp, _ = build(gradient_as_bucket_view=shared)
        train(ddp, torch.optim.Adam(ddp.parameters(), 0.01), 2)
        gone.append(weakref.ref(ddp))
    del ddp
    gc.collect()
    if any(reference() is not None for reference in gone):
        raise ValueError("a watched model is kept alive")


def case_only_every_so_many_steps():
    ddp, steps = build()
    watch._models[ddp].watch._interval = 4
    train(ddp, sgd(ddp), 9)
    flush(ddp)
    if len(steps) != 3:
        raise ValueError(f"{len(steps)} steps")


def case_a_compiled_model():
    ddp, steps = build(bucket_cap_mb=25)
    compiled = torch.compile(ddp, backend="eager")
    optimizer = sgd(ddp)
    gradients = over_ranks(own_gradient(ddp, batch(0)))
    loss_of(compiled, batch(0)).backward()
    optimizer.step()
    flush(ddp)
    check(steps[0], gradients)


def case_a_watched_model_is_copied_and_pickled_while_it_trains():
    import io

    for shared in (False, True):
        ddp, _ = build(gradient_as_bucket_view=shared)
        train(ddp, sgd(ddp))
        for model in (ddp, ddp.module):
            train(copy.deepcopy(model), sgd(model))
            file = io.BytesIO()
            torch.save(model, file)
            if b"zeusrun" in file.getvalue():
                raise ValueError("a saved model needs zeusrun")
