"""What a server logs: one line for each event on stderr, without any secret."""

from __future__ import annotations

import logging
import re
from typing import Any

from zeusrun.redaction import MASK, hide_password

# A token, and what stands where a token belongs in the path of Zeus's clients.
_TOKENS = re.compile(r"zeusrun_[0-9a-f]{8}_[A-Za-z0-9_-]*|(?<=/zeus/)/*[^/\s\"'?]+")


class Redacted(logging.Formatter):
    """Formats a record without secrets, and without the lines of a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        text = f"{record.levelname.lower()}: {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text += f" {type(error).__name__}: {error}"
        return hide_secrets(" ".join(text.split()))


def hide_secrets(text: str) -> str:
    """Return a text without tokens and without the passwords of URLs."""
    return hide_password(_TOKENS.sub(MASK, text))


def log_config(*, access_log: bool) -> dict[str, Any]:
    """Return the configuration of Python's logging for a server process."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": "zeusrun.server.logs.Redacted"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "loggers": {
            name: {"level": level, "handlers": ["stderr"], "propagate": False}
            for name, level in (
                ("zeusrun", "INFO"),
                ("uvicorn", "WARNING"),
                ("uvicorn.access", "INFO" if access_log else "WARNING"),
            )
        },
    }
