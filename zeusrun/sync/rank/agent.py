"""The section ``sync`` inside a rank: hooks into models and ``GradScaler``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from zeusrun.sync.rank.control import SyncedModels
from zeusrun.worker.agent import RankAgent
from zeusrun.worker.hooks.imports import replaces, wrap

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from zeusrun.gradients.rank.agent import GradientAgent
    from zeusrun.gradients.rank.watch import WatchedModels
    from zeusrun.worker.hooks.install import Hooks
    from zeusrun.worker.passes import Pass

_MODELS, _SCALER = "torch.nn.parallel.distributed", "torch.amp.grad_scaler"


def join(hooks: Hooks, given: Mapping[str, Any]) -> SyncAgent:
    """Return the agent that synchronizes the models of this rank with the other ranks."""
    observer, watch = hooks.observer, cast("GradientAgent | None", hooks.parts.get("watch"))
    models = SyncedModels(hooks.environment, given, observer)
    return SyncAgent(models, None if watch is None else watch.models)


class SyncAgent(RankAgent):
    """Synchronizes each ``DistributedDataParallel`` model as the job file says.

    Args:
        models: The synchronized models of this process.
        watched: Measures the gradients of the models; ``None`` without the section ``watch``.
    """

    modules = frozenset({_MODELS, _SCALER})

    def __init__(self, models: SyncedModels, watched: WatchedModels | None) -> None:
        self._models, self._watched = models, watched

    def hook(self, module: ModuleType) -> None:
        """See ``RankAgent.hook``."""
        if module.__name__ == _SCALER:
            wrap(vars(module)["GradScaler"], "scale", self._take_scaler)
            return
        cls: Any = vars(module)["DistributedDataParallel"]
        self._attach(cls)
        self._look_before_forward(cls)
        self._refuse(cls)

    def build(self, optimizer: Any) -> None:
        """See ``RankAgent.build``."""
        self._models.add_optimizer(optimizer)

    def after_step(self) -> None:
        """See ``RankAgent.after_step``."""
        self._models.after_step()

    def begin_pass(self, part: Pass, loader: Any) -> None:
        """See ``RankAgent.begin_pass``."""
        del loader
        part.backwards = self._models.backwards

    def end_pass(self, part: Pass) -> None:
        """See ``RankAgent.end_pass``."""
        self._models.end_pass(part)

    def end_epoch(self) -> None:
        """See ``RankAgent.end_epoch``."""
        self._models.end_epoch()

    def _take_scaler(self, scaler: Any, *_: Any, **__: Any) -> None:
        if scaler._scale is not None:
            self._models.scaler = scaler

    def _attach(self, cls: Any) -> None:
        begin, watched = cls.__init__, self._watched

        # An error is not caught: without the hook, the ranks would synchronize in another way.
        @replaces(cls, "__init__")
        def attach(ddp: Any, *args: Any, **options: Any) -> None:
            begin(ddp, *args, **options)
            follow = (lambda _: None) if watched is None else partial(watched.follow, ddp)
            self._models.attach(ddp, follow)

    def _look_before_forward(self, cls: Any) -> None:
        """Replace ``forward``, so that a model is synchronized before a forward pass.

        A forward hook of torch is not used, because it would be pickled with the model.
        """
        from torch import is_grad_enabled  # noqa: PLC0415 - is imported

        forward, models = cls.forward, self._models

        def look(ddp: Any) -> None:
            models.before_forward(ddp)

        look._torchdynamo_disable = True  # type: ignore[attr-defined] # as torch.compiler.disable does

        @replaces(cls, "forward")
        def look_first(ddp: Any, *args: Any, **options: Any) -> Any:
            if is_grad_enabled():
                look(ddp)
            return forward(ddp, *args, **options)

    def _refuse(self, cls: Any) -> None:
        """Refuse calls by which the ranks would synchronize in two ways at once."""
        has, begin_join = self._models.has, cls.join

        def refuse_hooks(name: str) -> None:
            register = getattr(cls, name)

            @replaces(cls, name)
            def register_comm_hook(ddp: Any, *args: Any, **options: Any) -> None:
                if has(ddp):
                    raise RuntimeError(
                        "zeusrun: the script registers a communication hook, and the job file has "
                        "sync: remove one of them"
                    )
                register(ddp, *args, **options)

        refuse_hooks("register_comm_hook")
        refuse_hooks("_register_builtin_comm_hook")

        @replaces(cls, "join")
        def join(ddp: Any, *args: Any, **options: Any) -> Any:
            if has(ddp):
                raise ValueError(
                    "zeusrun: DistributedDataParallel.join() needs an all-reduce, which 'sync' may "
                    "replace: remove 'sync' from the job file"
                )
            return begin_join(ddp, *args, **options)
