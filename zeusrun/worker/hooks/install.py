"""Installs the hook of a library right after the script has imported that library.

A hook never ends a training by an error. If it does not fit a version of its library, the library
stays unchanged, and the sidecar contains the reason.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from typing import TYPE_CHECKING, Any

from zeusrun.parts import PARTS, load_part
from zeusrun.sidecar.events import Hooked
from zeusrun.worker.environment import current_environment
from zeusrun.worker.hooks.imports import after_import
from zeusrun.worker.hooks.members import Member
from zeusrun.worker.hooks.observer import Observer
from zeusrun.worker.hooks.reporter import Reporter

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.sidecar.step_clock import StepClock
    from zeusrun.worker.agent import RankAgent, Rates
    from zeusrun.worker.hooks.apply import TrainingLoader

MODULES = {
    "torch.autograd": "pytorch.backward",
    "torch.optim.optimizer": "pytorch.optimizer",
    "torch.optim.lr_scheduler": "pytorch.scheduler",
    "torch.utils.data.dataloader": "pytorch.loader",
    "transformers.trainer": "transformers",
    "accelerate.accelerator": "loggers.accelerate",
    "torch.utils.tensorboard.writer": "loggers.tensorboard",
    "tensorboardX.writer": "loggers.tensorboard",
    "mlflow.tracking.fluent": "loggers.mlflow",
    "wandb.sdk.wandb_run": "loggers.wandb",
    "timm.utils.summary": "loggers.timm",
    "torchft.manager": "loggers.torchft",
    "ultralytics.engine.trainer": "ultralytics",
    "multiprocessing.spawn": "members",
    "torch.distributed.distributed_c10d": "members",
}
"""Module of a library -> the module of ``zeusrun.worker.hooks`` that hooks into it.

A part after a dot names the function; by default, it is ``install``. Lightning has entry points for
callbacks instead: see ``hooks/lightning.py`` and pyproject.toml.
"""

_OF_TORCH = {"pytorch", "members"}  # in every script

_installed: Hooks | None = None


class Hooks:
    """What the hooks of this process share.

    Args:
        clock: Counts optimizer steps; ``None`` if they cannot be counted.
        launched: Whether torchrun has started this process.

    Attributes:
        environment: This rank.
        member: Which steps of this process count.
        observer: Which loader feeds the optimizer steps, and with how many samples.
        reporter: Records the metrics that hooks see.
        training: Which loader gets the chosen batch size; ``None`` if the script takes it itself.
        parts: The agent of each part of the job, by the part's key in the job file.
        rates: Changes the learning rate in each step; ``None`` if nothing changes it.
    """

    def __init__(self, clock: StepClock | None, *, launched: bool = True) -> None:
        self.clock, self.launched = clock, launched
        self.environment = environment = current_environment()
        self.member = Member(environment, clock, self.flush, launched=launched)
        self.observer = Observer(environment)
        self.reporter = Reporter(environment, self.observer)
        self.training: TrainingLoader | None = None
        self.parts: dict[str, RankAgent] = {}
        agents = environment.agents
        agents.append(self.reporter)
        if environment.batch_size_to_replace:
            from zeusrun.worker.hooks.apply import TrainingLoader  # noqa: PLC0415 - few need it

            self.training = TrainingLoader(environment, self.observer)
            agents.append(self.training)
        given = environment.plan.parts
        for name in [each for each in PARTS if each in given]:
            self.parts[name] = load_part(name, "rank.agent").join(self, given[name])
            agents.append(self.parts[name])
        self.rates: Rates | None = next(filter(None, (each.rates for each in agents)), None)

    def install(self, module: ModuleType) -> None:
        """Install the hooks of a module that has just been executed."""
        for name, agent in self.parts.items():
            if module.__name__ in agent.modules:
                try:
                    agent.hook(module)
                except Exception as error:  # as below
                    if agent.must_hook:
                        raise
                    self.record_hook(name, _describe(error))
        if module.__name__ not in MODULES:
            return
        place, _, function = MODULES[module.__name__].partition(".")
        problem = None
        try:
            hook = importlib.import_module(f"zeusrun.worker.hooks.{place}")
            getattr(hook, function or "install")(module, self)
        except Exception as error:  # noqa: BLE001 - whatever a library has changed into
            problem = _describe(error)
        library = module.__name__.partition(".")[0]
        if problem is not None or place not in _OF_TORCH:
            self.record_hook((function or place) if library == "torch" else library, problem)

    def end_epoch(self) -> None:
        """Tell the agents that all ranks end an epoch, or are about to evaluate."""
        for agent in self.environment.agents:
            agent.end_epoch()

    def flush(self) -> None:
        """Record what has been seen and not recorded yet, at the end of the script."""
        for conclude in (
            self.observer.end,
            *(a.conclude for a in reversed(self.environment.agents)),
        ):
            with contextlib.suppress(Exception):  # the script may have replaced any function
                conclude()

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
    hooks = _installed = Hooks(clock, launched=launched)
    names = MODULES.keys() | {name for agent in hooks.parts.values() for name in agent.modules}
    after_import(names, hooks.install)
    return hooks


def installed_hooks() -> Hooks | None:
    """Return the hooks of this process; ``None`` outside zeusrun."""
    return _installed


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


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
