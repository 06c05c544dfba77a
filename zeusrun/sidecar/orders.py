"""How the launcher reaches the ranks: the content of the stop file, and two signals."""

ENDING = b"ending"  # content of the stop file once zeusrun ends the ranks

# Asks a rank for its stacks: a real-time signal, because Slurm and Lightning use SIGUSR1 and
# SIGUSR2. A number, because importing signal is slow.
STACK_SIGNAL = 57

# Ends a script that has no handler for SIGTERM: an exception in its main thread, so that its open
# files are closed.
LEAVE_SIGNAL = 58

# Ends a line of a rank's log that a full disk has cut, perhaps within a number.
MISSING = b"bytes or more are missing: the disk was full (zeusrun)"

AGENT_TOKEN = "ZEUSRUN_AGENT_TOKEN"  # noqa: S105 - the variable with the token of the agents

PREFIX_COLUMNS = len("[rank0] ")  # before each line of a rank that submit shows
