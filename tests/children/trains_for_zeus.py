"""A made-up training with Zeus's released ``BatchSizeOptimizer``, in Zeus's own environment.

``trains_for_zeus.py URL SETTINGS PLAN``: the plan is a list of steps, a step a list of trainings
that run at once, each in a process of its own. A training is a JSON object:
    costs       epochs and seconds an epoch, by batch size: {"32": [4, 0.04]}
    dies_with   {"32": "error"}: the script fails before its first report; "kill": by SIGKILL
    gives_up    true: it ends after the first epoch
Prints a line of JSON for each training, in order.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import types


class _Device:
    def __init__(self, index: int) -> None: ...

    def synchronize(self) -> None: ...


# The monitor waits for the GPU through torch, JAX or CuPy; a fake GPU has nothing to wait for.
sys.modules["cupy"] = types.ModuleType("cupy")
sys.modules["cupy"].cuda = types.SimpleNamespace(Device=_Device)

from zeus.monitor import ZeusMonitor  # noqa: E402
from zeus.optimizer.batch_size import BatchSizeOptimizer, JobSpec  # noqa: E402


def train(url: str, settings: dict, training: dict, answer: int) -> None:
    seen = {"batch_size": None, "trial": None, "epochs": 0, "converged": False, "error": None}

    def tell() -> None:
        os.ftruncate(answer, 0)
        os.pwrite(answer, json.dumps(seen).encode(), 0)

    try:
        monitor = ZeusMonitor(gpu_indices=[0], sync_execution_with="cupy")
        optimizer = BatchSizeOptimizer(monitor, url, JobSpec(**settings))
        size = optimizer.get_batch_size()
        seen |= {"batch_size": size, "trial": optimizer.trial_number}
        tell()
        how = training.get("dies_with", {}).get(str(size))
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "error":
            raise MemoryError("out of memory")
        needed, epoch_s = training["costs"][str(size)]
        optimizer.on_train_begin()
        while not optimizer.training_finished:
            time.sleep(epoch_s)
            seen["epochs"] += 1
            optimizer.on_evaluate(min(1.0, seen["epochs"] / needed))
            if training.get("gives_up"):
                break
        seen["converged"] = optimizer.training_finished
    except Exception as error:
        seen["error"] = f"{type(error).__name__}: {error}"
    tell()


def run_step(url: str, settings: dict, step: list[dict]) -> list[dict]:
    """Run trainings at once; each is a child, as importing Zeus takes more than a second."""
    answers, pids = [os.memfd_create("answer") for _ in step], []
    for training, answer in zip(step, answers, strict=True):
        pid = os.fork()
        if not pid:
            train(url, settings, training, answer)
            sys.exit()  # as a script ends: Zeus's client tells the server
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    return [json.loads(os.pread(answer, 1 << 20, 0) or b"null") for answer in answers]


if __name__ == "__main__":
    server_url, job, plan = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    for each in plan:
        for result in run_step(server_url, job, each):
            print(json.dumps(result), flush=True)
