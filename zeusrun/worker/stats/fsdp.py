"""Measures the gradients of a model that FSDP2 (``fully_shard``) has sharded.

FSDP2 averages the gradients of a group of parameters in one reduce-scatter. It takes the whole
gradient of this rank, and returns a shard of the mean. Both are read there once. So |g|² and |ḡ|²
cost one all-reduce of a few numbers a step. Needs torch, and a module that is sharded.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

from zeusrun.worker.stats.ddp import Step
from zeusrun.worker.stats.noise import Norms
from zeusrun.worker.stats.norms import as_number, squared_norm
from zeusrun.worker.stats.over_ranks import OverRanks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

_OF_ITS_OWN = "the script has a reduce-scatter or an all-reduce of its own for its gradients"
_PATIENCE = 10  # optimizer steps that cannot be measured, after which the user is told


def find_problem(state: Any) -> str | None:
    """Return why a sharded model cannot be measured.

    Args:
        state: The ``FSDPState`` of its root module.
    """
    return next(_find_problems(state), None)


class ShardedWatch:
    """Measures the gradients of one model.

    What counts is a pass: reduce-scatters of one backward pass, one of each group of parameters.
    They are the same on every rank. So all ranks take part in the same all-reduces, even if a rank
    skips an optimizer step.

    Args:
        state: The ``FSDPState`` of the root module; see ``find_problem``.
        interval: Measure every so many passes.
        samples: Returns the samples of this rank in the present step; 0 if unknown.
        scale: Returns by what the loss is multiplied.
        take: Gets what was measured, some steps later, the same on every rank.
        refuse: Gets a sentence if gradients cannot be measured; the training goes on.
    """

    def __init__(
        self,
        state: Any,
        *,
        interval: int,
        samples: Callable[[], int],
        scale: Callable[[], float | Tensor],
        take: Callable[[Step], None],
        refuse: Callable[[str], None],
    ) -> None:
        group = next(_groups_of(state)).mesh_info.shard_process_group
        self._ranks = distributed.get_world_size(group)
        self._over_ranks = OverRanks(group, self._take_in)
        self._state = weakref.ref(state)
        self._interval = interval
        self._samples, self._scale, self._take, self._refuse = samples, scale, take, refuse
        self._count = 0
        self._rounds = 0  # passes since the last optimizer step
        self._complete = True  # whether the first of them had every group
        self._missed = 0  # optimizer steps in a row for which it had not
        self._failed = False
        self._task = -1
        self._seen: set[Any] = set()  # reduce-scatters of the pass

    def register(self) -> None:
        """Begin."""
        state = self._state()
        for each in () if state is None else state._state_ctx.all_states:
            each._modules[0].set_custom_reduce_scatter(_ReduceScatter(self))

    def after_step(self, _optimizer: Any) -> None:
        """Begin another optimizer step."""
        self._rounds = 0

    def flush(self) -> None:
        """Take in all that is measured. No collective call."""
        self._over_ranks.flush()

    def before(self, comm: Any, given: dict[str, Any]) -> None:
        """Measure the gradient of this rank."""
        try:
            task = torch._C._current_graph_task_id()  # of this backward pass
            if task != self._task or not self._seen or comm in self._seen:
                self._begin(task)
            self._seen.add(comm)
            if given["op"] != distributed.ReduceOp.AVG or given.get("async_op"):
                self._fail(
                    "its gradients are not averaged in one step: reduce them in float32 or "
                    "bfloat16, with no divisor and no sum of the script's own"
                )
            if self._on:
                self._each.append(squared_norm(given["input_tensor"]))
        except Exception as error:  # noqa: BLE001 - whatever torch has changed into
            self._fail(f"its gradients cannot be measured ({type(error).__name__}: {error})")

    def after(self, given: dict[str, Any]) -> None:
        """Measure this rank's shard of the mean; the last group of a pass ends it."""
        try:
            if self._on:
                self._mean.append(squared_norm(given["output_tensor"]))
            if self._expected <= self._seen:
                self._end(given["output_tensor"])
        except Exception as error:  # noqa: BLE001 - whatever torch has changed into
            self._fail(f"its gradients cannot be measured ({type(error).__name__}: {error})")

    def _begin(self, task: int) -> None:
        self._over_ranks.collect()
        self._task = task
        self._first = not self._rounds
        self._rounds += 1
        if self._first:
            self._missed = 0 if self._complete else self._missed + 1
            self._complete = False
            if self._missed == _PATIENCE:  # measuring goes on: ranks may count steps differently
                self._refuse(
                    "its gradients cannot be measured: the first backward pass of a step does not "
                    "reduce those of each sharded module exactly once"
                )
        self._on = self._count % self._interval == 0
        self._count += 1
        self._seen.clear()
        self._each: list[Tensor] = []  # of the groups of this rank
        self._mean: list[Tensor] = []  # of its shards of the averaged ones
        self._expected = self._find_expected()
        if self._on:
            self._inverse = 1 / (self._samples() or float("inf"))
            self._loss_scale = self._scale()

    def _find_expected(self) -> set[Any]:
        """Return the reduce-scatters of all groups that have gradients."""
        state = self._state()
        groups = () if state is None else list(_groups_of(state))
        if any(
            not isinstance(group._reduce_scatter_comm, _ReduceScatter)
            or group._all_reduce_hook is not None
            for group in groups
        ):
            self._fail(_OF_ITS_OWN)
        return {
            group._reduce_scatter_comm
            for group in groups
            if any(parameter.sharded_param.requires_grad for parameter in group.fsdp_params)
        }

    def _end(self, like: Tensor) -> None:
        """Sum over the ranks what each of them knows."""
        self._seen.clear()
        self._complete = self._complete or self._first
        if not self._on:
            return
        zero = as_number(0, like)
        each, mean = (torch.stack([zero, *found]).sum() for found in (self._each, self._mean))
        square = as_number(self._loss_scale, like).square()
        # Gradients that were averaged before, and those of a rank without data, do not count.
        unusable = self._failed or not self._first or not self._inverse
        self._over_ranks.add(
            torch.stack(
                [
                    each / square,
                    mean / square,
                    as_number(self._inverse, like),
                    as_number(unusable, like) + (each == 0),
                ]
            )
        )

    def _take_in(self, numbers: list[float], _given: None) -> None:
        each, mean, inverse, unusable = numbers
        if not unusable:
            ranks = self._ranks
            self._take(Step(Norms(each / ranks, mean, inverse / ranks, ranks), None, None))

    def _fail(self, problem: str) -> None:
        """Tell the user; this rank still takes part in the all-reduces, for the other ranks."""
        if not self._failed:
            self._failed = True
            self._refuse(problem)


class _ReduceScatter(DefaultReduceScatter):
    """Torch's own reduce-scatter, of one group of parameters, with a view of what it gets."""

    def __init__(self, watch: ShardedWatch) -> None:
        self._watch = watch

    def __call__(self, *arguments: Any, **given: Any) -> Any:
        self._watch.before(self, given)
        work = super().__call__(*arguments, **given)
        self._watch.after(given)
        return work


def _groups_of(state: Any) -> Iterator[Any]:
    for each in state._state_ctx.all_states:
        yield from each._fsdp_param_groups


def _find_problems(state: Any) -> Iterator[str]:
    groups = list(_groups_of(state))
    parameters = [parameter.sharded_param for group in groups for parameter in group.fsdp_params]
    if not parameters:
        yield "fully_shard has sharded none of its parameters"
        return
    infos = [group.mesh_info for group in groups]
    if any(type(info) is not FSDPMeshInfo for info in infos):
        yield "its parameters are sharded and replicated (HSDP): use a mesh of one dimension"
    mesh = infos[0].mesh
    if any(
        each != mesh for each in [*(i.mesh for i in infos), *(p.device_mesh for p in parameters)]
    ):
        yield "its parameters are sharded over several meshes: use one of one dimension"
    if mesh.size() == 1:
        yield "its parameters are sharded over one rank, so there is nothing to compare"
    if any(
        type(group._reduce_scatter_comm) is not DefaultReduceScatter
        or group._all_reduce_hook is not None
        for group in groups
    ):
        yield _OF_ITS_OWN
    known = {
        id(found)
        for group in groups
        for parameter in group.fsdp_params
        for found in (parameter.sharded_param, getattr(parameter, "_unsharded_param", None))
    }
    if any(p.requires_grad and id(p) not in known for p in state._modules[0].parameters()):
        yield "fully_shard ignores some of its parameters"
