"""Makes up histories for the pages of a server: the example of the docs, and long ones.

``python benchmarks/pages.py FILE`` writes what ``made_up.py`` shows to an SQLite
database, for the pictures of the docs. ``benchmarks/server.py --page`` measures the pages.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
from pathlib import Path

import made_up

from zeusrun.history.sql.schema import create_tables
from zeusrun.history.sql.store import SqlHistory


def fill(store: SqlHistory, trials: int, jobs: int) -> None:
    """Write ``trials`` trials of ``jobs`` jobs."""
    rng = random.Random(19)  # noqa: S311 - not for secrets
    for number in range(jobs):
        name = f"job-{number:03d}" if jobs > len(made_up.JOBS) else made_up.JOBS[number]
        count = trials // jobs + (number < trials % jobs)
        made = made_up.make_trials(count, rng, name)[:count]
        store.add([dataclasses.replace(each, host=f"node-{number % 4}") for each in made])
        store.keep_settings(name, made_up.settings_of(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the new SQLite database")
    path = parser.parse_args().file
    store = SqlHistory(f"sqlite:///{path.absolute()}")
    create_tables(store.engine)
    made_up.fill(store)
    store.close()
    print(f"zeusrun serve --database-url sqlite:///{path.absolute()}")


if __name__ == "__main__":
    main()
