"""Installs the hook of a library right after the script has imported that library.

A hook never ends a training by an error. If it does not fit a version of its library, the library
stays unchanged, and the sidecar contains the reason.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Hooked
from zeusrun.worker.environment import current_environment
from zeusrun.worker.hooks import elastic
from zeusrun.worker.hooks.imports import after_import
from zeusrun.worker.hooks.members import Member
from zeusrun.worker.hooks.observer import Observer
from zeusrun.worker.hooks.reporter import Reporter

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from zeusrun.sidecar.step_clock import StepClock
    from zeusrun.worker.adapt.control import Control, Rates
    from zeusrun.worker.elastic.member import Member as ElasticMember
    from zeusrun.worker.hooks.apply import TrainingLoader
    from zeusrun.worker.hooks.observer import Pass
    from zeusrun.worker.stats.watch import WatchedModels
    from zeusrun.worker.sync.control import SyncedModels

MODULES = {
    "torch.autograd": "pytorch.backward",
    "torch.optim.optimizer": "pytorch.optimizer",
    "torch.optim.lr_scheduler": "schedulers",
    "torch.utils.data.dataloader": "pytorch.loader",
    "torch.nn.parallel.distributed": "pytorch.models",
    "torch.amp.grad_scaler": "pytorch.grad_scaler",
    "transformers.trainer": "transformers",
    "accelerate.accelerator": "loggers.accelerate",
    "torch.utils.tensorboard.writer": "loggers.tensorboard",
    "tensorboardX.writer": "loggers.tensorboard",
    "mlflow.tracking.fluent": "loggers.mlflow",
    "wandb.sdk.wandb_run": "loggers.wandb",
    "timm.utils.summary": "loggers.timm",
    "torchft.manager": "torchft",
    "ultralytics.engine.trainer": "ultralytics",
    "multiprocessing.spawn": "members",
    "subprocess": "members",
    "torch.distributed.distributed_c10d": "members",
}
"""Module of a library -> the module of ``zeusrun.worker.hooks`` that hooks into it.

A part after a dot names the function; by default, it is ``install``. Lightning has entry points for
callbacks instead: see ``hooks/lightning.py`` and pyproject.toml.
"""

_OF_TORCH = {"pytorch", "members", "schedulers"}  # in every script

_installed: Hooks | None = None


class Hooks:
    """What the hooks of this process share.

    Attributes:
        environment: This rank.
        member: Which steps of this process count.
        observer: Which loader feeds the optimizer steps, and with how many samples.
        reporter: Records the metrics that hooks see.
        training: Which loader gets the chosen batch size; ``None`` if the script takes it itself.
        watch: The statistics of gradients; ``None`` if the job file asks for none.
        sync: The models whose ranks agree in another way than by an all-reduce; else ``None``.
        agree: Called after each optimizer step.
        keep_optimizer: Called with each new optimizer.
        control: Changes the batch size; ``None`` if it is fixed.
        rates: Changes the learning rate with it; ``None`` if that is not needed.
        elastic: This process in an elastic training; ``None`` if the ranks stay the same.
    """

    def __init__(self, tick: Callable[..., None] | None, *, launched: bool = True) -> None:
        self.environment = environment = current_environment()
        self.member = Member(environment, tick, self.flush, launched=launched)
        self.observer = Observer(environment)
        self.reporter = Reporter(environment, self.observer)
        self.training: TrainingLoader | None = None
        if environment.batch_size_to_replace:
            from zeusrun.worker.hooks.apply import TrainingLoader  # noqa: PLC0415 - few need it

            self.training = TrainingLoader(environment, self.observer)
        environment.consumed = lambda: self.observer.consumed
        environment.stepped = lambda: self.observer.steps or None
        self.watch: WatchedModels | None = None
        if environment.statistics is not None:
            from zeusrun.worker.stats.watch import WatchedModels  # noqa: PLC0415 - few need it

            interval = json.loads(environment.statistics)["noise_scale"]["interval"]
            self.watch = WatchedModels(environment, interval, self.observer)
        self.sync: SyncedModels | None = None
        if environment.sync is not None:
            from zeusrun.worker.sync.control import SyncedModels  # noqa: PLC0415 - few need it

            self.sync = SyncedModels(environment, environment.sync, lambda: self.observer.training)
        self.agree: Callable[[], None] = lambda: None
        self.keep_optimizer: Callable[[Any], None] = lambda _: None
        if self.sync is not None:
            self.agree, self.keep_optimizer = self.sync.after_step, self.sync.add_optimizer
        self.control: Control | None = None
        if environment.adaptation is not None:
            from zeusrun.worker.adapt.control import Control  # noqa: PLC0415 - few need it
            from zeusrun.worker.adapt.policies import Plan  # noqa: PLC0415

            watch = self.watch
            noise = (lambda: None) if watch is None else lambda: watch.noise
            self.control = Control(environment, Plan.read(environment.adaptation), noise)
        self.elastic: ElasticMember | None = None
        if environment.slot is not None and launched:
            from zeusrun.worker.elastic.member import Member as ElasticMember  # noqa: PLC0415 - as above

            self.elastic = ElasticMember(environment)
        changing = self.control if self.elastic is None else self.elastic.scale
        self.rates: Rates | None = None if changing is None else changing.rates

    def install(self, module: ModuleType) -> None:
        """Install the hooks of a module that has just been executed."""
        if self.elastic is not None and module.__name__ in elastic.MODULES:
            elastic.install(module, self.elastic)
        if module.__name__ not in MODULES:
            return
        place, _, function = MODULES[module.__name__].partition(".")
        problem = None
        try:
            hook = importlib.import_module(f"zeusrun.worker.hooks.{place}")
            getattr(hook, function or "install")(module, self)
        except Exception as error:  # noqa: BLE001 - whatever a library has changed into
            problem = f"{type(error).__name__}: {error}"
        library = module.__name__.partition(".")[0]
        if problem is not None or place not in _OF_TORCH:
            self.record_hook((function or place) if library == "torch" else library, problem)

    def end_pass(self, part: Pass) -> None:
        """Let the ranks agree after a pass of the training."""
        if self.sync is not None:
            self.sync.end_pass(part)
        self.observer.end_pass(part)

    def end_epoch(self) -> None:
        """Let the ranks agree where all of them end an epoch, or are about to evaluate."""
        if self.sync is not None:
            self.sync.end_epoch()

    def flush(self) -> None:
        """Record what has been seen and not recorded yet, at the end of the script."""
        with contextlib.suppress(Exception):  # the script may have replaced anything
            if self.control is not None:
                self.control.end()
            self.observer.end()
            self.reporter.flush()
            if self.watch is not None:
                self.watch.flush()

    def record_hook(self, library: str, problem: str | None = None) -> None:
        """Record that a library has a hook, or why it has none."""
        if self.environment.rank == 0:
            known = getattr(sys.modules.get(library), "__version__", None)
            version = str(known or _version(library))
            self.environment.record(Hooked(time.monotonic(), library, version, problem))


def install_hooks(clock: StepClock | None, *, launched: bool = True) -> Hooks:
    """Hook every library that this process imports from now on, or has imported.

    Args:
        clock: Counts optimizer steps; ``None`` if they cannot be counted.
        launched: Whether torchrun has started this process.
    """
    global _installed  # noqa: PLW0603 - one for the process, like the modules that it changes
    hooks = _installed = Hooks(None if clock is None else clock.tick, launched=launched)
    after_import(MODULES.keys() | elastic.MODULES, hooks.install)
    if hooks.elastic is not None:
        hooks.environment.agree_on_stop = hooks.elastic.agree_on_stop
        hooks.elastic.on_change = hooks.observer.change_ranks
        hooks.elastic.parts["observer"] = hooks.observer.exchange
        if clock is not None:
            hooks.elastic.parts["clock"] = clock.exchange
    return hooks


def installed_hooks() -> Hooks | None:
    """Return the hooks of this process; ``None`` outside zeusrun."""
    return _installed


def _version(library: str) -> str:
    """Return the version of an installed package that has no ``__version__`` (yet)."""
    try:
        from importlib.metadata import version  # noqa: PLC0415 - takes 20 ms, and few need it

        return version(library)
    except ImportError:  # PackageNotFoundError is one
        return "unknown"


class Copyable:
    """A callback that scripts can copy and pickle together with their trainer.

    It is the first base of the callback's class; the last base is the library's own class. A pickle
    contains an object of the library's class instead, so that it can be read without zeusrun.
    """

    def __deepcopy__(self, _memo: Any) -> Any:
        return type(self)()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).__bases__[-1], ()
