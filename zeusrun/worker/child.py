"""Begins in each interpreter that ``multiprocessing`` starts for a rank or its children.

Most of them load data: until one joins a process group or trains, this imports little. It also
begins in the ranks that a script starts as programs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.imports import after_import, after_joining, reach_children

if TYPE_CHECKING:
    from types import ModuleType

_GROUPS, _OPTIMIZER = "torch.distributed.distributed_c10d", "torch.optim.optimizer"


def begin(launched_ranks: int) -> None:
    """Install the hooks when this process joins a process group; see whether it trains without.

    Args:
        launched_ranks: How many ranks torchrun has started. With several, a child is no rank.
    """
    if not os.environ.get("ZEUSRUN_RUN_DIR") or not os.environ.get("ZEUSRUN_SIDECAR"):
        return  # a process that is to outlive the run
    done = False  # the hooks are installed, or it has said that it trains

    def hook(module: ModuleType) -> None:
        if module.__name__ == _OPTIMIZER:
            optimizer: Any = module
            with contextlib.suppress(AttributeError):  # a stand-in for torch
                optimizer.register_optimizer_step_post_hook(step)
        elif module.__name__ == _GROUPS:
            after_joining(module, join)
        else:
            reach_children(module, launched_ranks)

    def join() -> None:
        nonlocal done
        if not done and launched_ranks == 1:
            done = True
            _become_rank()

    def step(*_: object) -> None:
        nonlocal done
        if not done:
            done = True
            with contextlib.suppress(Exception):  # an error of ours must not end the child
                _record_training()

    after_import((_GROUPS, _OPTIMIZER, "multiprocessing.spawn"), hook)


def main(known: frozenset[str]) -> None:
    """Run a rank that the script has started as a program, or a program that starts ranks.

    Args:
        known: The modules that every Python has imported when a script begins.
    """
    from zeusrun.worker.ending import end  # noqa: PLC0415 - those of multiprocessing do not need it
    from zeusrun.worker.hooks.members import place_in, reach_programs  # noqa: PLC0415
    from zeusrun.worker.script import run_script, show_failure  # noqa: PLC0415

    python, own, pid = sys.orig_argv[: -len(sys.argv)], place_in(os.environ), os.getpid()
    begin(1)
    after_import(["subprocess"], lambda module: reach_programs(module, own))
    end(*_conclude(show_failure(run_script(sys.argv[1:], known, python)), pid), pid)


def _conclude(error: BaseException | None, pid: int) -> tuple[BaseException | None, bool, float]:
    """Record what is not recorded yet, and a failure; return the arguments of ``end``."""
    install = sys.modules.get("zeusrun.worker.hooks.install")
    hooks = None if install is None else install.installed_hooks()
    if hooks is None:  # it has joined no process group
        return error, False, 0.0
    environment = hooks.environment
    with contextlib.suppress(Exception):  # the script may have replaced what this needs
        from zeusrun.sidecar.orders import LEAVE_SIGNAL  # noqa: PLC0415 - has been imported
        from zeusrun.worker.ending import exit_code  # noqa: PLC0415 - has been imported
        from zeusrun.worker.failure import record_failure  # noqa: PLC0415 - has been imported

        signal.signal(LEAVE_SIGNAL, signal.SIG_IGN)  # the script has ended
        if os.getpid() == pid:  # else the script has forked this process
            hooks.flush()
            if error is not None and exit_code(error):
                rank, restart = environment.rank, environment.restart
                record_failure(environment.error_path, rank, restart, error)
    return error, environment.had_group(gloo=True), environment.grace_period_s


def _become_rank() -> None:
    from zeusrun.sidecar.orders import LEAVE_SIGNAL  # noqa: PLC0415 - few children need it
    from zeusrun.worker.ending import leave  # noqa: PLC0415
    from zeusrun.worker.environment import current_environment  # noqa: PLC0415
    from zeusrun.worker.hooks.install import install_hooks  # noqa: PLC0415
    from zeusrun.worker.hooks.members import take_place  # noqa: PLC0415

    install_hooks(take_place(current_environment()), launched=False)
    signal.signal(LEAVE_SIGNAL, leave)


def _record_training() -> None:
    from zeusrun.sidecar.events import Spawned, append_event  # noqa: PLC0415 - few children need it

    append_event(os.environ["ZEUSRUN_SIDECAR"], Spawned(time.monotonic(), os.getpid()))
