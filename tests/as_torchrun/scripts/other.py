import sys

print(__name__, sys.argv, sys.modules["__main__"].__file__)


def fail():
    raise ValueError("in the other")


if __name__ == "__main__":
    fail()
