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
# What it starts goes on when it has ended.
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

    Args:
        python: The interpreter that has zeusrun; absolute.
        home: Zeusrun's.
        variables: ``NAME=value`` each, needed to import it.

    They know no times: every minute they start what is due, so that overlaps, pauses and missed
    runs are the same as with cron.

    Raises:
        UsageError: If one of them holds a control character.
    """
    told = check_words(python, home, variables)
    words = ("-m", "zeusrun", "schedule", "tick")  # a $ in the path of a program is no variable
    command = " ".join([_quoted(python), *(_quoted(word).replace("$", "$$") for word in words)])
    variable = " ".join(map(_quoted, told))
    return {
        "zeusrun-schedule.service": _SERVICE.format(variable=variable, command=command),
        "zeusrun-schedule.timer": _TIMER,
    }


def _quoted(word: str) -> str:
    """Return a word as systemd reads it (systemd.syntax(7), systemd.unit(5))."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if re.search(r"[\s\"';\\]", word) else escaped
