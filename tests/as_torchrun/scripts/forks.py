"""Forks: of a child that ends as the script does, by _exit, by an exit code, by an exception."""

import atexit
import os
import sys

how = sys.argv[1]
me = os.getpid()
atexit.register(lambda: print("hook of", "parent" if os.getpid() == me else "child"))
file = open("shared.txt", "w")
child = os.fork()
if child:
    _, status = os.waitpid(child, 0)
    print("child ended with", os.waitstatus_to_exitcode(status))
    file.write("parent\n")
else:
    file.write("child\n")
    print("child")
    if how == "exits":
        sys.exit(3)
    elif how == "exits_at_once":
        os._exit(4)
    elif how == "fails":
        raise ValueError("in the child")
    elif how == "killed":
        os.kill(os.getpid(), 9)
    elif how == "interrupted":
        raise KeyboardInterrupt
