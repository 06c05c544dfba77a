"""What faulthandler prints: dump | later | segfault."""

import ctypes
import faulthandler
import sys
import time

how = sys.argv[1]
print(faulthandler.is_enabled())
faulthandler.enable()


def inner():
    if how == "dump":
        faulthandler.dump_traceback()
    elif how == "later":
        faulthandler.dump_traceback_later(0.05, exit=True)
        time.sleep(60)
    else:
        ctypes.string_at(0)


inner()
