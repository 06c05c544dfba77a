"""Prints its arguments in every way that a script may by accident; with ``fail``, fails so, too."""

import argparse
import sys
from urllib.parse import quote

import zeusrun

print("argv", sys.argv)
for word in sys.argv[1:]:
    print("word", word, quote(word, safe=""), repr(word))
parser = argparse.ArgumentParser()
parser.add_argument("--api-key", type=int if "fail" in sys.argv else str)
parser.parse_known_args()
if "raise" in sys.argv:
    raise ValueError(f"bad arguments: {sys.argv}")
run = zeusrun.current()
run.report(epoch=1, accuracy=1.0)
