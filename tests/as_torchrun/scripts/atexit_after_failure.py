"""What exit hooks see of the exception that ended the script."""

import atexit
import sys
import traceback


def look():
    print(sys.last_type, repr(sys.last_value))
    trace = sys.last_traceback
    while trace is not None:
        print(trace.tb_frame.f_code.co_name, trace.tb_lineno, trace.tb_frame.f_back is None)
        trace = trace.tb_next
    print(sys.exc_info())
    print("".join(traceback.format_stack()[:-1]))


atexit.register(look)


def fail():
    raise ValueError("to be seen at exit")


fail()
