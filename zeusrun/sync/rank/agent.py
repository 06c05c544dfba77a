"""The section ``sync`` inside a rank: its models agree with those of the other ranks."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from zeusrun.files.private import read_file, replace_file
from zeusrun.sidecar.events import SYNC_STATE, Synced
from zeusrun.sync.rank.vote import Seconds, Vote
from zeusrun.worker.agent import RankAgent
from zeusrun.worker.hooks.imports import refuse, replaces, wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from zeusrun.gradients.rank.agent import WatchedModels
    from zeusrun.sync.rank.vote import Change
    from zeusrun.sync.rank.ways import Way, Ways
    from zeusrun.worker.environment import WorkerEnvironment
    from zeusrun.worker.hooks.install import Hooks
    from zeusrun.worker.hooks.observer import Observer
    from zeusrun.worker.passes import Feed, Pass

_MODELS, _SCALER = "torch.nn.parallel.distributed", "torch.amp.grad_scaler"
_MAX_STEPS = 10  # optimizer steps without a model, after which the user is warned
_SAVED = 50  # passes, after which their number is kept for a restart
_RECENT = 8  # backward passes of other models, after which one without any is no longer trained
# Calls by which the ranks would synchronize in two ways at once.
_OWN_HOOK = (
    "the script registers a communication hook, and the job file has sync: remove one of them"
)
_JOIN = (
    "DistributedDataParallel.join() needs an all-reduce, which 'sync' may replace: remove 'sync' "
    "from the job file"
)


def join(hooks: Hooks, given: Mapping[str, Any]) -> SyncedModels:
    """Return the agent that synchronizes the models of this rank with the other ranks."""
    watched = cast("WatchedModels | None", hooks.parts.get("watch"))
    return SyncedModels(hooks.environment, given, hooks.observer, watched)


class SyncedModel:
    """A ``DistributedDataParallel`` that agrees in another way than by its backend's all-reduce.

    Args:
        ddp: The model.
        given: The section ``sync``.
        owner: The models of this process.
        index: Its number among them, from 0.

    Attributes:
        ways: In which it can agree.

    Raises:
        RuntimeError: If the model cannot agree so.
    """

    def __init__(self, ddp: Any, given: Mapping[str, Any], owner: SyncedModels, index: int) -> None:
        from zeusrun.sync.rank.ways import Ways  # noqa: PLC0415 - imports torch

        self._owner, self._index, self._ddp = owner, index, weakref.ref(ddp)
        self._is_first = ddp.process_group.rank() == 0
        self._shares_buffers = ddp.broadcast_buffers
        self.ways = ways = Ways(ddp, given, owner.warn_of_rank)
        self._planned = ways.planned()
        self._counts = len(self._planned) > 1  # whether a restart must go on counting
        known = [float(owner.restore(index)) if self._counts else 0.0]
        self._passes = round(ways.gather(known)[0][0])  # as the first rank knows it
        self._way = self._first = self._due_way()
        if self._passes:
            owner.record(self._way.name, f"{self._passes} backward passes came before this start")
        self._is_new = False  # whether a backward pass has begun since the last look
        self._last_pass = 0  # the number of its last one among those of all models
        self._mode = False  # ``ddp.training`` in the last forward pass
        self._trains_as = False  # the same, in the last one that a backward pass followed
        self._seconds = Seconds()
        self._fallbacks = ways.fallbacks()
        self._vote = Vote(1 + len(self._fallbacks), ways.gather) if self._fallbacks else None
        self._send_buffers()

    @property
    def is_mean(self) -> bool:
        """Whether gradients become their mean over the ranks."""
        return self._way.is_mean

    def hook(self, bucket: Any) -> Any:
        """Average a bucket; the communication hook of the model."""
        if not self._is_new:
            self._is_new = True
            self._owner.backwards += 1
        self._trains_as, self._last_pass = self._mode, self._owner.backwards
        if self._vote is None:
            return self._way.reduce(bucket)
        self._seconds.begin()
        return self._way.reduce(bucket).then(self._end)

    def _end(self, future: Any) -> Any:
        self._seconds.end()
        return future.value()

    def before_forward(self, ddp: Any) -> None:
        """Average or vote before a forward pass that keeps gradients.

        Not in evaluation mode, unless it trains so: one rank may evaluate alone.
        """
        self._mode, evaluates = ddp.training, self._trains_as and not ddp.training
        if not evaluates:
            self.between_steps()

    @property
    def averages_epochs(self) -> bool:
        """Whether it is trained now, and averages where an epoch ends."""
        is_trained = self._owner.backwards - self._last_pass <= _RECENT
        return self._way.averages_epochs and is_trained

    def between_steps(self, *, ends: bool = False) -> None:
        """Average parameters and vote, if a backward pass has been since the last time.

        All ranks call this at the same place. They count backward passes and no steps of an
        optimizer, which a ``GradScaler`` skips on a rank whose gradients are infinite.
        """
        if not self._is_new:
            return
        self._is_new = False
        self._passes += 1
        if self._way.average is not None and self._way.average(ends) and not ends:
            self._owner.compare_loaders(self.ways.gather)
        if self._planned and self._passes >= self._planned[0][0]:
            self._go_on(self._due_way(), f"after {self._passes} backward passes")
        if self._counts and self._passes % _SAVED == 0 and self._is_first:
            self._owner.save(self._index, self._passes)
        if self._vote is not None:
            # ``None`` on all ranks or on none: each pass counts, however short it was on this one.
            seconds = self._seconds.take()
            change = None if seconds is None else self._vote.after_pass(seconds)
            if change is not None:
                self._follow(change)

    def register(self, ddp: Any) -> None:
        """Register the communication hook."""
        from torch import distributed  # noqa: PLC0415 - is imported

        # As in ``GradientWatch``: DDP's own method would add it to what is pickled.
        vars(distributed)["_register_comm_hook"](ddp.reducer, self, SyncedModel.hook)

    def _due_way(self) -> Way:
        """Return the last planned way whose number of passes is reached."""
        due = [way for after, way in self._planned if after <= self._passes]
        del self._planned[: len(due)]
        return due[-1]

    def _follow(self, change: Change) -> None:
        way = self._first if change.way == 0 else self._fallbacks[change.way - 1]()
        self._go_on(way, change.why)

    def _go_on(self, way: Way, why: str | None) -> None:
        """Agree in another way from now on; all ranks at the same place."""
        before, self._way = self._way, way
        if before.average is not None and way.average is None:
            self.ways.parameters.average(self.ways.group)
            self._owner.share_states(self.ways)
        self._send_buffers()
        if why is not None:
            self._owner.record(way.name, why)

    def _send_buffers(self) -> None:
        """Let DDP send the first rank's buffers to all, unless averages include them."""
        if (ddp := self._ddp()) is not None:
            ddp.broadcast_buffers = self._shares_buffers and self._way.average is None


class SyncedModels(RankAgent):
    """Each ``DistributedDataParallel`` of this process, which agrees as the section ``sync`` says.

    Args:
        environment: This rank.
        given: The values of the section ``sync``.
        observer: Finds the loader that feeds the steps of this rank.
        watched: Measures the gradients of the models; ``None`` without the section ``watch``.

    Attributes:
        scaler: The script's ``GradScaler``, if it has one.
        backwards: Backward passes of all models so far.
    """

    modules = frozenset({_MODELS, _SCALER})

    def __init__(
        self,
        environment: WorkerEnvironment,
        given: Mapping[str, Any],
        observer: Observer,
        watched: WatchedModels | None = None,
    ) -> None:
        self._environment, self._given, self._steps = environment, given, 0
        run_dir = environment.plan.run_dir
        self._state = Path(run_dir, SYNC_STATE) if run_dir else None
        self._observer, self._watched = observer, watched
        self._loader: Feed | None = None  # of ``compare_loaders``
        self._thread = self.backwards = 0
        self._models: weakref.WeakKeyDictionary[Any, SyncedModel] = weakref.WeakKeyDictionary()
        self._optimizers: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
        self._built, self._has_shards = 0, False
        self.scaler: Any = None

    def hook(self, module: ModuleType) -> None:
        """See ``RankAgent.hook``."""
        if module.__name__ == _SCALER:
            wrap(vars(module)["GradScaler"], "scale", self._take_scaler)
            return
        cls: Any = vars(module)["DistributedDataParallel"]
        begin = cls.__init__

        # An error is not caught: without the hook, the ranks would synchronize in another way.
        @replaces(cls, "__init__")
        def attach(ddp: Any, *args: Any, **options: Any) -> None:
            begin(ddp, *args, **options)
            self.attach(ddp)

        self._look_before_forward(cls)
        for name in ("register_comm_hook", "_register_builtin_comm_hook"):
            refuse(cls, name, lambda ddp, *_, **__: _OWN_HOOK if ddp in self._models else None)
        refuse(cls, "join", lambda ddp, *_, **__: _JOIN if ddp in self._models else None)

    def _take_scaler(self, scaler: Any, *_: Any, **__: Any) -> None:
        if scaler._scale is not None:
            self.scaler = scaler

    def attach(self, ddp: Any) -> None:
        """Let a ``DistributedDataParallel`` agree as the job file says, if it has several ranks."""
        if ddp.process_group.size() == 1:
            return
        self._built += 1
        model = self._models[ddp] = SyncedModel(ddp, self._given, self, self._built - 1)
        if self._watched is None or not self._watched.follow(ddp, model):
            model.register(ddp)

    def before_forward(self, ddp: Any) -> None:
        """Let a model agree, if it should, before a forward pass that keeps gradients."""
        if (model := self._models.get(ddp)) is not None:
            self._thread = threading.get_ident()
            model.before_forward(ddp)

    def compare_loaders(self, gather: Callable[[list[float]], list[list[float]]]) -> None:
        """Keep the loader that feeds this rank's steps if those of all ranks are alike.

        They are not where one rank reads all data, or takes another loader for that of its steps.
        """
        feed = self._observer.training
        size = (0, 0, 0) if feed is None else (feed.length, feed.data, feed.nominal)
        rows = gather([float(each or 0) for each in size])
        self._loader = feed if rows[0][0] and all(row == rows[0] for row in rows) else None

    def begin_pass(self, part: Pass, loader: Any) -> None:
        """See ``RankAgent.begin_pass``."""
        del loader
        part.backwards = self.backwards

    def end_pass(self, part: Pass) -> None:
        """Let models agree where a pass over the training data ends, if it has trained them."""
        is_own = part.feed is self._loader and threading.get_ident() == self._thread
        if is_own and self.backwards > part.backwards:
            self.end_epoch()

    def end_epoch(self) -> None:
        """Let models agree where all ranks end an epoch, or are about to evaluate."""
        for model in [each for each in self._models.values() if each.averages_epochs]:
            model.between_steps(ends=True)

    def build(self, optimizer: Any) -> None:
        """Keep an optimizer, whose states all ranks may have to share."""
        self._optimizers[optimizer] = None
        classes = {each.__name__ for each in type(optimizer).__mro__}
        self._has_shards = self._has_shards or "ZeroRedundancyOptimizer" in classes

    def after_step(self) -> None:
        """Take in an optimizer step; after some, warn of a model that cannot agree.

        Raises:
            RuntimeError: If each rank's optimizer has only a part of the parameters, and the ranks
                do not exchange gradients.
        """
        self._steps += 1
        if self._steps != _MAX_STEPS and not self._has_shards:
            return
        apart = [each.ways for each in self._models.values() if each.ways.averages]
        if apart and self._has_shards:
            raise RuntimeError(
                "zeusrun: each rank of ZeroRedundancyOptimizer trains a part of the parameters, so "
                "the ranks must exchange gradients: take 'every', 'method' or 'on_slow' out of "
                "sync in the job file"
            )
        if self._steps != _MAX_STEPS:
            return
        if not self._models:
            self.warn(
                "sync has no effect, because the script does not use DistributedDataParallel: use "
                "it, or remove sync"
            )
        known = {
            id(parameter)
            for each in list(self._optimizers)
            for group in each.param_groups
            for parameter in group["params"]
        }
        if any(all(id(each) not in known for each in ways.parameters.trained) for ways in apart):
            self.warn(
                "the optimizer trains copies of the parameters, which sync cannot average: use "
                "'compress', or an optimizer with the parameters themselves"
            )

    def _look_before_forward(self, cls: Any) -> None:
        """Replace ``forward``, so that a model is synchronized before a forward pass.

        A forward hook of torch is not used, because it would be pickled with the model.
        """
        from torch import is_grad_enabled  # noqa: PLC0415 - is imported

        forward, before = cls.forward, self.before_forward

        def look(ddp: Any) -> None:
            before(ddp)

        look._torchdynamo_disable = True  # type: ignore[attr-defined] # as torch.compiler.disable does

        @replaces(cls, "forward")
        def look_first(ddp: Any, *args: Any, **options: Any) -> Any:
            if is_grad_enabled():
                look(ddp)
            return forward(ddp, *args, **options)

    def share_states(self, ways: Ways) -> None:
        """Give all ranks one state of what trains a model, before they exchange gradients again."""
        from zeusrun.sync.rank.averaging import share_scale, share_states  # noqa: PLC0415 - imports torch

        if not share_states(list(self._optimizers), ways.parameters.trained, ways.group):
            self.warn(
                "the optimizers of the ranks had different states, so all were cleared: momentum "
                "starts again from zero"
            )
        if self.scaler is not None:
            share_scale(self.scaler, ways.group)

    def restore(self, index: int) -> int:
        """Return the backward passes of a model before this start of the run; 0 if unknown."""
        known = self._read().get(str(index))
        return known if type(known) is int and known > 0 else 0

    def save(self, index: int, passes: int) -> None:
        """Keep the backward passes of a model for a restart."""
        if self._state is not None:
            with contextlib.suppress(OSError):
                replace_file(self._state, json.dumps({**self._read(), str(index): passes}).encode())

    def _read(self) -> dict[str, Any]:
        """Return what is kept now: ranks that are the first of other groups write the file, too."""
        with contextlib.suppress(OSError, ValueError, TypeError):  # a script may write anything
            if self._state is not None:
                return dict(json.loads(read_file(self._state, 1 << 16)))
        return {}

    def record(self, how: str, why: str, problem: str | None = None) -> None:
        """Record that the ranks agree in another way from now on."""
        self._environment.record_on_0(Synced(time.monotonic(), self._steps, how, why, problem))

    def warn(self, problem: str) -> None:
        """Record a problem that all ranks have."""
        self.record("", "", problem)

    def warn_of_rank(self, problem: str) -> None:
        """Record a problem of this rank."""
        self._environment.record(Synced(time.monotonic(), self._steps, "", "", problem))
