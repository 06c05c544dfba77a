"""Measures the gradients of a model that FSDP2 (``fully_shard``) has sharded.

FSDP2 averages the gradients of a group of parameters in one reduce-scatter. Its input is the whole
gradient of this rank, and its output a shard of the mean. Each is read once. So |g|² and |ḡ|² cost
one all-reduce of a few numbers a step. Needs torch, and a module that is sharded.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

from zeusrun.worker.stats.model import UnmeasurableError
from zeusrun.worker.stats.noise import Norms
from zeusrun.worker.stats.numbers import add_up, as_number, squared_norm
from zeusrun.worker.stats.rank_meter import RankMeter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from zeusrun.worker.stats.model import Model

_CUSTOM = "the script has a reduce-scatter or an all-reduce of its own for its gradients"
_MAX_INCOMPLETE = 10  # optimizer steps in a row that cannot be measured, before a warning


def _check(state: Any) -> None:
    """Raise ``UnmeasurableError`` if a sharded model cannot be measured."""
    groups = list(_groups_of(state))
    parameters = [parameter.sharded_param for group in groups for parameter in group.fsdp_params]
    if not parameters:
        raise UnmeasurableError("fully_shard has sharded none of its parameters")
    infos = [group.mesh_info for group in groups]
    if any(type(info) is not FSDPMeshInfo for info in infos):
        raise UnmeasurableError(
            "its parameters are sharded and replicated (HSDP): use a mesh of one dimension"
        )
    mesh = infos[0].mesh
    if any(
        each != mesh for each in [*(i.mesh for i in infos), *(p.device_mesh for p in parameters)]
    ):
        raise UnmeasurableError(
            "its parameters are sharded over several meshes: use one of one dimension"
        )
    if mesh.size() == 1:
        raise UnmeasurableError(
            "its parameters are sharded over one rank, so there is nothing to compare"
        )
    if any(
        type(group._reduce_scatter_comm) is not DefaultReduceScatter
        or group._all_reduce_hook is not None
        for group in groups
    ):
        raise UnmeasurableError(_CUSTOM)
    known = {
        id(tensor)
        for group in groups
        for parameter in group.fsdp_params
        for tensor in (parameter.sharded_param, getattr(parameter, "_unsharded_param", None))
    }
    if any(p.requires_grad and id(p) not in known for p in state._modules[0].parameters()):
        raise UnmeasurableError("fully_shard ignores some of its parameters")


class ShardedWatch(RankMeter):
    """Measures the gradients of one model.

    It counts passes: the reduce-scatters of one backward pass, one of each group of parameters.
    They are the same on every rank. So all ranks take part in the same all-reduces, even if a rank
    skips an optimizer step.

    Args:
        state: The ``FSDPState`` of the root module.
        model: Receives the measurements.
        options: Those of ``RankMeter``.

    Raises:
        UnmeasurableError: If this model cannot be measured.
    """

    def __init__(self, state: Any, model: Model, **options: Any) -> None:
        _check(state)
        super().__init__(next(_groups_of(state)).mesh_info.shard_process_group, model, **options)
        self._state = weakref.ref(state)
        self._is_complete = True  # whether the first pass of a step had every group
        self._incomplete = 0  # optimizer steps in a row for which it had not
        self._task = -1  # the backward pass, by autograd's number
        self._done: set[Any] = set()  # reduce-scatters of the pass
        for each in state._state_ctx.all_states:
            each._modules[0].set_custom_reduce_scatter(_ReduceScatter(self))

    def before(self, comm: Any, arguments: dict[str, Any]) -> None:
        """Measure the gradient of this rank."""
        try:
            task = torch._C._current_graph_task_id()  # of this backward pass
            if task != self._task or not self._done or comm in self._done:
                self._begin(task)
            self._done.add(comm)
            if arguments["op"] != distributed.ReduceOp.AVG or arguments.get("async_op"):
                self._fail(
                    "its gradients are not averaged in one step: reduce them in float32 or "
                    "bfloat16, with no divisor and no sum of the script's own"
                )
            if self._on:
                self._each.append(squared_norm(arguments["input_tensor"]))
        except Exception as error:  # noqa: BLE001 - another version of torch
            self._fail(f"its gradients cannot be measured ({type(error).__name__}: {error})")

    def after(self, arguments: dict[str, Any]) -> None:
        """Measure this rank's shard of the mean; end the pass after the last group."""
        try:
            if self._on:
                self._mean.append(squared_norm(arguments["output_tensor"]))
        except Exception as error:  # noqa: BLE001 - another version of torch
            self._fail(f"its gradients cannot be measured ({type(error).__name__}: {error})")
        if self._expected <= self._done:
            self._end(arguments["output_tensor"])

    def _begin(self, task: int) -> None:
        self._rank_sums.collect()
        self._task = task
        self._first = not self._since_step
        self._since_step += 1
        if self._first:
            self._incomplete = 0 if self._is_complete else self._incomplete + 1
            self._is_complete = False
            # It keeps measuring, because the ranks may count their optimizer steps differently.
            if self._incomplete == _MAX_INCOMPLETE:
                self._report_problem(
                    "its gradients cannot be measured: the first backward pass of a step does not "
                    "reduce those of each sharded module exactly once"
                )
        self._on = self._count % self._interval == 0
        self._count += 1
        self._done.clear()
        self._each: list[Tensor] = []  # of the groups of this rank
        self._mean: list[Tensor] = []  # of its shards of the averaged ones
        self._expected = self._find_expected()
        self._inverse = 0.0
        self._loss_scale: float | Tensor = 1.0
        if self._on:
            self._loss_scale = self._scale()
            self._inverse = 1 / (self._samples() or float("inf"))

    def _find_expected(self) -> set[Any]:
        """Return the reduce-scatters of all groups that have gradients."""
        state = self._state()
        groups = () if state is None else list(_groups_of(state))
        if any(
            not isinstance(group._reduce_scatter_comm, _ReduceScatter)
            or group._all_reduce_hook is not None
            for group in groups
        ):
            self._fail(_CUSTOM)
        return {
            group._reduce_scatter_comm
            for group in groups
            if any(parameter.sharded_param.requires_grad for parameter in group.fsdp_params)
        }

    def _end(self, like: Tensor) -> None:
        """Sum over the ranks."""
        self._done.clear()
        self._is_complete = self._is_complete or self._first
        if not self._on:
            return
        # Gradients that were averaged before, and those of a rank without data, are not used.
        is_unusable = self._failed or not self._first or not self._inverse
        flags = [is_unusable, sum(self._each) == 0]
        numbers = add_up((self._each, self._mean, [self._inverse], flags), like)
        numbers[:2] /= as_number(self._loss_scale, like).square()
        self._rank_sums.add(numbers)

    def _receive_sums(self, numbers: list[float], _extra: None) -> None:
        each, mean, inverse, unusable = numbers
        if not unusable:
            ranks = self.ranks
            self._receive(Norms(each / ranks, mean, inverse / ranks, ranks), "ranks")


class _ReduceScatter(DefaultReduceScatter):
    """Torch's own reduce-scatter of one group of parameters; its input and output are measured."""

    def __init__(self, watch: ShardedWatch) -> None:
        self._watch = watch

    def __call__(self, *positional: Any, **arguments: Any) -> Any:
        self._watch.before(self, arguments)
        work = super().__call__(*positional, **arguments)
        self._watch.after(arguments)
        return work


def _groups_of(state: Any) -> Iterator[Any]:
    for each in state._state_ctx.all_states:
        yield from each._fsdp_param_groups
