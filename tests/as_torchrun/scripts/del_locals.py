"""Locals and generators that are alive when the script leaves by an exit or a failure."""

import contextlib
import sys


class Noisy:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        print("deleted", self.name)


def generate():
    held = Noisy("of a generator")
    try:
        yield 1
    finally:
        print("finally of a generator")


@contextlib.contextmanager
def manage():
    print("enter")
    try:
        yield
    finally:
        print("leave")


stack = contextlib.ExitStack()
stack.callback(print, "callback of a global stack")
generator = generate()
next(generator)


def main():
    local = Noisy("local")
    with manage():
        try:
            if sys.argv[1] == "exit":
                sys.exit(4)
            raise ValueError("4")
        finally:
            print("finally")


main()
