"""The systemd user units that start due jobs on machines without cron. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zeusrun.schedule.crontab import check_words

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SERVICE = """[Unit]
Description=Start the zeusrun jobs that are due

[Service]
Type=oneshot
Environment={variable}
WorkingDirectory=/
ExecStart={command}
# The jobs continue after this command ends.
KillMode=process
"""
_TIMER = """[Unit]
Description=Every minute, start the zeusrun jobs that are due

[Timer]
OnCalendar=*-*-* *:*:00
AccuracySec=1s

[Install]
WantedBy=timers.target
"""


def systemd_units(python: str, home: Path, variables: Sequence[str] = ()) -> dict[str, str]:
    """Return the user units that do what the crontab entry does, by file name.

    They contain no times of jobs. Every minute they start what is due, so overlaps, pauses and
    missed runs are the same as with cron.

    Args:
        python: The interpreter that has zeusrun; absolute.
        home: The home of zeusrun.
        variables: ``NAME=value`` each, needed to import it.

    Raises:
        UsageError: If one of them contains a control character.
    """
    assignments = check_words(python, home, variables)
    words = ("-m", "zeusrun", "schedule", "tick")  # in the program's path, $ needs no escape
    command = " ".join([_quoted(python), *(_quoted(word).replace("$", "$$") for word in words)])
    variable = " ".join(map(_quoted, assignments))
    return {
        "zeusrun-schedule.service": _SERVICE.format(variable=variable, command=command),
        "zeusrun-schedule.timer": _TIMER,
    }


def _quoted(word: str) -> str:
    """Quote a word for systemd (systemd.syntax(7), systemd.unit(5))."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if re.search(r"[\s\"';\\]", word) else escaped
