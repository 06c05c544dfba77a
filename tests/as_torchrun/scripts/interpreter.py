"""What variables of Python change: asserts, docstrings, paths, encodings, developer mode."""

import sys

assert sys.argv[1] != "optimized", "asserts are on"
print(sys.flags, __doc__, sys.path[0] if not sys.flags.safe_path else "-")
print(sys.stdout.encoding, sys.getfilesystemencoding(), sys.stdout.errors, sys.warnoptions)
try:
    import neighbour
except ImportError as error:
    print(error)
import tracemalloc

print(tracemalloc.is_tracing(), tracemalloc.get_traceback_limit(), hash("text"))
file = open("left.txt", "w")
if sys.argv[1] == "breakpoint":
    breakpoint()
    print("went on")
