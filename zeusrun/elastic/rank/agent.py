"""The section ``elastic`` inside a rank: the ranks may change between passes or steps."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any

from zeusrun.elastic.rank.member import Member
from zeusrun.worker.agent import LoaderControl, RankAgent
from zeusrun.worker.hooks.imports import replace_in_distributed, wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from types import ModuleType

    from zeusrun.worker.batches import Batches, MicroBatch
    from zeusrun.worker.environment import WorkerEnvironment
    from zeusrun.worker.hooks.install import Hooks
    from zeusrun.worker.hooks.observer import Observer
    from zeusrun.worker.passes import Pass

_GROUPS, _MODELS = "torch.distributed.distributed_c10d", "torch.nn.parallel.distributed"
_OPTIMIZERS = "torch.optim.optimizer"
_STATES = {
    _OPTIMIZERS: ("Optimizer",),
    "torch.optim.lr_scheduler": ("LRScheduler", "ReduceLROnPlateau"),
    "torch.amp.grad_scaler": ("GradScaler",),
}  # modules of torch, and their classes of which each object is tracked
_LIBRARIES = ("transformers", "accelerate", "lightning", "pytorch_lightning")


def join(hooks: Hooks, given: Mapping[str, Any]) -> RankAgent:
    """Return the agent of an elastic rank.

    A process that a rank has started gets an agent that does nothing.
    """
    environment = hooks.environment
    if environment.slot is None or not hooks.launched:
        return RankAgent()
    member = Member(environment, given, hooks.observer, hooks.clock)
    return ElasticAgent(member, Epochs(environment, member), hooks.observer)


class ElasticAgent(RankAgent):
    """Changes the ranks of a training between passes or steps.

    Args:
        member: This process as a member of the training.
        epochs: Handles the passes of an unedited script.
        observer: Finds the loader that feeds the steps.
    """

    modules = frozenset({_GROUPS, _MODELS, *_STATES})
    must_hook = True

    def __init__(self, member: Member, epochs: Epochs, observer: Observer) -> None:
        self._member, self._epochs, self._observer = member, epochs, observer
        self.rates = member.scale.rates
        self.loader_control = _ElasticControl(member)

    def hook(self, module: ModuleType) -> None:
        """See ``RankAgent.hook``."""
        member = self._member
        if module.__name__ == _GROUPS:
            _replace_group(module, member)
        elif module.__name__ == _MODELS:
            cls: Any = vars(module)["DistributedDataParallel"]
            wrap(cls, "__init__", lambda model, *_, **given: member.tracked.add_model(model, given))
        elif module.__name__ == _OPTIMIZERS:
            module.register_optimizer_step_post_hook(member.count_step)
        for name in _STATES.get(module.__name__, ()):
            wrap(vars(module)[name], "__init__", lambda owner, *_, **__: member.tracked.add(owner))

    def begin_pass(self, part: Pass, loader: Any) -> None:
        """See ``RankAgent.begin_pass``. The ranks of an unedited script may change here."""
        if self._epochs.begin(loader, is_training=part.feed is self._observer.training):
            self._observer.change_ranks()
        part.limit = 1 if self._member.is_alone else None

    def agree_on_stop(self, *, wishes: bool) -> bool:
        """See ``RankAgent.agree_on_stop``."""
        return self._member.agree_on_stop(wishes)

    def step(self) -> AbstractContextManager[None]:
        """See ``RankAgent.step``."""
        return self._member.step()


class _ElasticControl(LoaderControl):
    """Divides the batches of ``run.loader`` among the present ranks."""

    def __init__(self, member: Member) -> None:
        self._member = member

    def is_training(self, loader: object, epoch: int | None) -> bool:
        """See ``LoaderControl.is_training``. An evaluation is also divided among the ranks."""
        del loader, epoch
        return True

    def enter(self, exchange: Callable[[Any], Any]) -> None:
        """See ``LoaderControl.enter``. A new rank joins the others here."""
        self._member.parts["loader"] = exchange
        self._member.enter()

    def before_step(self) -> None:
        """See ``LoaderControl.before_step``."""
        self._member.tracked.keep_buffers()

    def after_batch(self, micro: MicroBatch, batches: Batches) -> bool:
        """See ``LoaderControl.after_batch``."""
        member = self._member
        if member.is_lost:
            if member.is_made:
                batches.position = micro.end
            member.recover()  # if the step was not made, the ranks repeat it
            return True
        super().after_batch(micro, batches)
        return micro.is_last and member.after_step(batches.rest)

    def sizes(self, first: int, limit: int | None) -> tuple[int, int | None]:
        """See ``LoaderControl.sizes``."""
        del limit
        return self._member.scale.apply(first), self._member.scale.per_device_max

    def change_ranks(self) -> None:
        """See ``LoaderControl.change_ranks``."""
        self._member.observer.change_ranks()


def _replace_group(module: Any, member: Member) -> None:
    """Replace the process group that a script makes by that of the present generation."""
    initialize = module.init_process_group

    @functools.wraps(initialize)
    def init_process_group(backend: str | None = None, *args: Any, **options: Any) -> Any:
        if member.is_opening:  # our own
            return initialize(backend, *args, **options)
        if backend is not None and "gloo" not in backend:
            raise RuntimeError(
                f"zeusrun: an elastic training needs the backend gloo, not {backend}: write  "
                "init_process_group('gloo')  or remove elastic from the job file"
            )
        return member.open()

    broadcast = module.broadcast_object_list

    @functools.wraps(broadcast)
    def broadcast_object_list(objects: list[Any], *args: Any, **options: Any) -> Any:
        return None if member.is_alone else broadcast(objects, *args, **options)

    for new in (init_process_group, broadcast_object_list):
        replace_in_distributed(module, new)


class Epochs:
    """Changes the ranks of an unedited script between two epochs; called as each pass begins.

    Where ``DistributedDataParallel``, the loader and its ``DistributedSampler`` are torch's own,
    the script stays as it is. A newcomer runs the script from its beginning, but gets only one
    batch of each pass until its epoch is the one in which it joins; then all that it has learned is
    replaced.

    Args:
        environment: This rank.
        member: Its part in the training.
    """

    def __init__(self, environment: WorkerEnvironment, member: Member) -> None:
        self._environment, self._member = environment, member
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._passes: dict[int, int] = {}
        self._places: set[tuple[int, int]] = set()  # rank and number of ranks, so far
        # The batch size of each loader over all ranks, where it is not scaled.
        self._wholes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def begin(self, loader: Any, *, is_training: bool) -> bool:
        """Begin a pass; return whether the loader divides its data among other ranks than before.

        ``is_training``: whether the loader is known to feed the optimizer steps.
        """
        from torch.utils.data import BatchSampler, DistributedSampler  # noqa: PLC0415 - as needed

        from zeusrun.worker.loader import AdaptiveLoader  # noqa: PLC0415 - imports torch

        if isinstance(loader, AdaptiveLoader):
            return False
        sampler, batches = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
        if not isinstance(sampler, DistributedSampler) or not isinstance(batches, BatchSampler):
            if is_training:
                self._member.refuse(
                    "the training data come from no DataLoader with a DistributedSampler of torch"
                )
            return False
        if library := next((each for each in _LIBRARIES if each in sys.modules), None):
            self._member.refuse(f"{library} keeps the ranks that it has found at its start")
        number = self._number(loader)
        passes = self._passes[number] = self._passes.get(number, 0) + 1
        self._places.add(self._place)
        self._member.begin_epoch(number, max(passes, sampler.epoch + 1), is_training=is_training)
        place = sampler.rank, sampler.num_replicas
        if place not in self._places or self._member.is_alone:
            return False
        if loader not in self._wholes:
            self._wholes[loader] = self._find_whole(number, batches.batch_size, place[1])
        each = max(1, self._member.scale.apply(self._wholes[loader]) // self._place[1])
        if (place, batches.batch_size) == (self._place, each):
            return False
        batches.batch_size = each
        self._divide(sampler)
        return True

    @property
    def _place(self) -> tuple[int, int]:
        return self._environment.rank, self._environment.world_size

    def _number(self, loader: Any) -> int:
        """Return the number of a loader; one that a script builds for each epoch keeps it."""
        if loader not in self._numbers:
            taken = set(self._numbers.values())
            self._numbers[loader] = min(set(range(1, len(taken) + 2)) - taken)
        return self._numbers[loader]

    def _find_whole(self, number: int, share: int, ranks: int) -> int:
        """Return the batch size of a loader over all ranks, from its own on one of them.

        With another number of ranks than at the start, a script may have divided its batch size by
        that number, or given each rank the same as before. Anything else is another batch size.
        """
        chosen = self._environment.plan.batch_size
        if chosen and share in {self._environment.share, chosen // ranks}:
            return chosen
        whole, first = self._member.board.read_loader(number)
        if share not in {first, whole // ranks}:
            whole = share * ranks
            if self._environment.rank == 0:
                self._member.board.write_loader(number, whole, share)
        return whole

    def _divide(self, sampler: Any) -> None:
        """Divide the data among the present ranks, as a new sampler would."""
        sampler.rank, sampler.num_replicas = _, size = self._place
        total = len(sampler.dataset)
        kept = total - size if sampler.drop_last and total % size else total
        sampler.num_samples = -(-kept // size)
        sampler.total_size = sampler.num_samples * size
