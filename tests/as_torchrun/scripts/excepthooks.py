"""Hooks for exceptions that the script replaces."""

import sys
import traceback


def shows(kind, error, trace):
    print("hook", kind, error)
    traceback.print_tb(trace, file=sys.stdout)
    traceback.print_stack(file=sys.stdout)


def raises(kind, error, trace):
    raise RuntimeError("in the hook")


def leaves(kind, error, trace):
    sys.exit(8)


def interrupted(kind, error, trace):
    raise KeyboardInterrupt


class Noisy:
    def __del__(self):
        raise ValueError("in a destructor")


how = sys.argv[1]
if how == "deleted":
    del sys.excepthook
elif how == "none":
    sys.excepthook = None
elif how == "unraisable":
    sys.unraisablehook = lambda args: print("unraisable", args.exc_type, args.object is not None)
    Noisy()
elif how == "ignored":
    Noisy()
    at_the_end = Noisy()
elif how == "not_for_exits":
    sys.excepthook = shows
    sys.exit(3)
else:
    sys.excepthook = {
        "shows": shows,
        "raises": raises,
        "leaves": leaves,
        "interrupted": interrupted,
    }[how]


def fail():
    raise ValueError("to the hook")


if how not in {"unraisable", "ignored"}:
    fail()
