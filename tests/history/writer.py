"""A process that begins and finishes trials: ``python -m tests.history.writer DIRECTORY COUNT``.

Says ``ready``, waits for a line, and then acknowledges every write once it is done.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.contracts.history import REACHED, next_trial
from zeusrun.history.tinydb import TinyDBHistory


def main(directory: str, count: str) -> None:
    history = TinyDBHistory(Path(directory))
    say("ready")
    sys.stdin.readline()
    for _ in range(int(count)):
        trial = history.begin("digits", next_trial)
        say(f"begun {trial.trial}")
        history.finish(trial.trial, REACHED)
        say(f"finished {trial.trial}")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
