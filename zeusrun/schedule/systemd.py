"""The systemd user units that run a tick every minute on machines without cron. Pure."""

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
Environment={variables}
WorkingDirectory=/
ExecStart={python} -m zeusrun schedule tick
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
    """Return the user units by file name; the arguments are those of ``crontab.build_command``."""
    assignments = " ".join(map(_quoted, check_words(python, home, variables)))
    return {
        # In the program's path, $ needs no escape.
        "zeusrun-schedule.service": _SERVICE.format(variables=assignments, python=_quoted(python)),
        "zeusrun-schedule.timer": _TIMER,
    }


def _quoted(word: str) -> str:
    """Quote a word for systemd (systemd.syntax(7), systemd.unit(5))."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if re.search(r"[\s\"';\\]", word) else escaped
