"""A terminal of our own, by ``pty``, in which a command runs."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios

from tests.forks import TIMEOUT_S
from tests.runs import wait_for

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A terminal of 24 rows in which a command runs."""

    def __init__(self, argv, environment, folder):
        self.ours, theirs = pty.openpty()
        self.resize(24, 80)
        self.before = termios.tcgetattr(self.ours)
        kept = {
            name: text for name, text in environment.items() if name not in {"COLUMNS", "LINES"}
        }
        self.child = subprocess.Popen(
            argv,
            cwd=folder,
            env={**kept, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no threads
        )
        os.close(theirs)
        self.seen = ""

    def resize(self, rows, columns):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self):
        """Return the last screen that was drawn, as lines."""
        while select.select([self.ours], [], [], 0)[0]:
            try:
                self.seen += os.read(self.ours, 65536).decode()
            except OSError:  # the command has ended
                break
        drawn = self.seen.split("\x1b[H")
        return [line.rstrip() for line in ESCAPES.sub("", drawn[-1]).splitlines()]

    def wait_for(self, *words, without=()):
        """Return the screen once it contains all words."""

        def look():
            lines = self.read()
            text = "\n".join(lines)
            return all(w in text for w in words) and not any(w in text for w in without) and lines

        return wait_for(look, 60, f"{words} in {self.read()}")

    def end(self, key):
        os.write(self.ours, key)
        code = self.child.wait(TIMEOUT_S)
        self.read()
        return code
