"""What the launcher asks of the ranks: by the content of the stop file, and by a signal."""

from __future__ import annotations

import sys

ENDING = b"ending"  # content of the stop file once zeusrun ends the ranks and does not just ask

# Asks a rank for its stacks. One of the real-time signals, which no library that trains uses, while
# Slurm and Lightning use SIGUSR1 and SIGUSR2. As a number, because importing signal would take a
# rank as long as all the rest of this; None on a system that has no such signals.
STACK_SIGNAL: int | None = 57 if sys.platform == "linux" else None
