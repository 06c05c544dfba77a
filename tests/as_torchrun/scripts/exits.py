"""Every form of an exit."""

import atexit
import os
import sys
import threading


class Odd:
    def __str__(self):
        return "odd: ä"


class Broken:
    def __str__(self):
        raise ValueError("no text")


class Leave(SystemExit):
    pass


def nested():
    try:
        sys.exit(6)
    finally:
        print("finally")


def from_except():
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise SystemExit("failed") from error


def at_once():
    file = open("unflushed.txt", "w")
    file.write("lost")
    os.write(1, b"at once\n")
    os._exit(5)


def changed():
    error = SystemExit(1)
    error.code = 9
    raise error


def in_thread():
    thread = threading.Thread(target=sys.exit, args=[3])
    thread.start()
    thread.join()


def executes():
    os.execv(sys.executable, [sys.executable, "-c", "import sys; sys.exit(8)"])


def closed():
    sys.stderr.close()
    sys.exit("to a closed stream")


FORMS = {
    "none": lambda: sys.exit(),
    "zero": lambda: sys.exit(0),
    "three": lambda: sys.exit(3),
    "minus": lambda: sys.exit(-1),
    "256": lambda: sys.exit(256),
    "2_40": lambda: sys.exit(2**40 + 2),
    "2_70": lambda: sys.exit(2**70),
    "true": lambda: sys.exit(True),
    "text": lambda: sys.exit("gründlich misslungen"),
    "empty": lambda: sys.exit(""),
    "object": lambda: sys.exit(Odd()),
    "broken": lambda: sys.exit(Broken()),
    "tuple": lambda: sys.exit((1, 2)),
    "float": lambda: sys.exit(0.0),
    "nested": nested,
    "from_except": from_except,
    "at_once": at_once,
    "changed": changed,
    "in_thread": in_thread,
    "subclass": lambda: (_ for _ in ()).throw(Leave(7)),
    "quit": lambda: quit(),
    "exit": lambda: exit(2),
    "executes": executes,
    "closed": closed,
}
atexit.register(print, "hook")
FORMS[sys.argv[1]]()
