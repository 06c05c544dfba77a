"""Begins and finishes a trial, once for every line of its standard input, each in a process forked.

Run with ``faulty.so`` preloaded. A line is JSON: ``{directory, number, prefix, at, how, lasting,
journal}``, where the last five are what ``faulty_arm`` takes. Says ``begun``, ``finished``,
``refused <why>`` or ``crashed <error>`` as it happens, and at last ``ended <exit code>``.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

from faults_audit import build_outcome, build_trial

from zeusrun.errors import HistoryError
from zeusrun.history.tinydb.store import TinyDBHistory

LOCK_TIMEOUT_S = 1.0


def main() -> None:
    faulty_arm = ctypes.CDLL(None).faulty_arm
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = write(order, faulty_arm)
            except BaseException as error:  # noqa: BLE001 - it is not to go on with the next line
                say(f"crashed {error!r}")
            finally:
                os._exit(code)
        say(f"ended {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


def write(order: dict[str, Any], faulty_arm: Any) -> int:  # noqa: ANN401 - of a C library
    """Begin and finish one trial under a fault; return the exit code."""
    directory = Path(order["directory"])
    history = TinyDBHistory(directory, lock_timeout_s=LOCK_TIMEOUT_S)
    trial, outcome = build_trial(order["number"], directory / "run"), build_outcome()
    told = [order[key] for key in ("prefix", "at", "how", "lasting", "journal")]
    faulty_arm(*(word.encode() if isinstance(word, str) else word for word in told))
    try:
        history.begin(trial, after=history.snapshot(trial.job, 0).version)
        say("begun")
        history.finish(trial.trial, outcome)
        say("finished")
    except HistoryError as error:
        say(f"refused {error}")
        return int(error.exit_code)
    return 0


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main()
