"""Tools of the standard library that take the script to be __main__."""

import argparse
import sys


def double(n):
    """Double.

    >>> double(2)
    4
    >>> double(3)
    7
    """
    return 2 * n


how = sys.argv[1]
if how == "argparse":
    parser = argparse.ArgumentParser()
    parser.add_argument("how")
    parser.add_argument("--lr", type=float)
    print(parser.prog)
    parser.parse_args(["argparse", "--lr", "fast"])
elif how == "doctest":
    import doctest

    print(doctest.testmod())
elif how == "unittest":
    import unittest

    class Test(unittest.TestCase):
        def test(self):
            print(self.id(), double(2))
            self.fail()

    runner = unittest.TextTestRunner(stream=open("/dev/null", "w"))
    unittest.main(argv=sys.argv[:1], testRunner=runner)
elif how == "pdb":
    import pdb

    pdb.run("double(1)")
elif how == "timeit":
    import timeit

    print(timeit.timeit("double(1)", "from __main__ import double", number=2) > 0)
elif how == "reload":
    import importlib

    import neighbour

    importlib.reload(neighbour)
    import __main__

    importlib.reload(__main__)
