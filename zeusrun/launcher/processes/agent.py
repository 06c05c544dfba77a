"""Runs torchrun's ``main`` and ends its process without taking the interpreter down.

That would take 0.3 s with torch imported. It skips Python's exit handlers, the threads of the
rendezvous store, and the freeing of memory. Standard output and standard error are flushed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import traceback
from typing import NoReturn

from zeusrun.worker.ending import announce_agent, end_with_parent


def main() -> NoReturn:
    """Run torchrun on ``sys.argv``; never returns."""
    end_with_parent()
    announce_agent()
    # Slurm may send SIGUSR1 to every process of a step; only the launcher acts on it.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    code = 0
    gc.disable()  # torch makes 170,000 objects and no garbage: a tenth of the time of its import
    try:
        from torch.distributed.run import main as run  # noqa: PLC0415 - not before the lines above

        gc.freeze()
        gc.enable()
        run()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else error.code is not None
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)  # noqa: T201 - as the interpreter does
    except BaseException:  # noqa: BLE001 - what the interpreter would do with it
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
