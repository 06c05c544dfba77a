"""Exceptions that end the script."""

import json
import sys


class Custom(Exception):
    class Inner(Exception):
        pass


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Base(BaseException):
    pass


class Grammar(SyntaxError):
    pass


def chained():
    try:
        {}["a"]
    except KeyError as error:
        raise Custom.Inner("no a") from error


def context():
    try:
        {}["a"]
    except KeyError:
        int("b")


def recursion(n=0):
    return recursion(n + 1)


def group():
    raise ExceptionGroup("several", [ValueError(1), ExceptionGroup("inner", [KeyError("x")])])


def note():
    error = ValueError("with a note")
    error.add_note("the note: ä")
    raise error


def grammar():
    raise Grammar("my own", ("file.cfg", 3, 7, "a = = b\n"))


def limited():
    sys.tracebacklimit = 1
    context()


def without_trace():
    error = ValueError("shortened")
    error.__traceback__ = None
    raise error


def suppressed():
    try:
        1 / 0
    except ZeroDivisionError:
        raise ValueError("alone") from None


def of_eval():
    exec(compile("def f():\n    raise ValueError('of eval')\nf()", "<made>", "exec"), {})


def stored():
    try:
        context()
    except ValueError as error:
        kept = error
    raise kept


def unknown_import():
    import nothing_of_this_name


def misspelt():
    sys.exlt


FORMS = {
    "chained": chained,
    "context": context,
    "recursion": recursion,
    "group": group,
    "note": note,
    "grammar": grammar,
    "limited": limited,
    "without_trace": without_trace,
    "suppressed": suppressed,
    "of_eval": of_eval,
    "stored": stored,
    "unknown_import": unknown_import,
    "misspelt": misspelt,
    "mute": lambda: (_ for _ in ()).throw(Mute()),
    "base": lambda: (_ for _ in ()).throw(Base("base")),
    "library": lambda: json.loads("{"),
    "syntax": lambda: compile("a = = b\n", "made.py", "exec"),
    "surrogate": lambda: (_ for _ in ()).throw(ValueError("lone \udcff surrogate")),
}
FORMS[sys.argv[1]]()
