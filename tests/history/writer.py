"""A process that begins and finishes trials: ``python -m tests.history.writer DIRECTORY COUNT``.

It seals volumes of three trials. Says ``ready``, waits for a line, and then acknowledges every write once it is done.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.contracts.history import REACHED, begin, build_trial
from zeusrun.history.tinydb.store import TinyDBHistory

if TYPE_CHECKING:
    from zeusrun.trial import Trial


def main(directory: str, count: str) -> None:
    history = TinyDBHistory(Path(directory), volume_trials=3)
    say("ready")
    sys.stdin.readline()
    for _ in range(int(count)):
        trial = begin(history, number_next, last=1)
        say(f"begun {trial.trial}")
        history.finish(trial.trial, REACHED)
        say(f"finished {trial.trial}")


def number_next(newest: list[Trial]) -> Trial:
    return build_trial(newest[-1].recurrence + 1 if newest else 1)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
