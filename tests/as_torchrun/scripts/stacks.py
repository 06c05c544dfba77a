"""Who stands below the script on the stack."""

import inspect
import logging
import sys
import traceback
import warnings

traceback.print_stack(file=sys.stdout)
print(len(inspect.stack()), sys._getframe().f_back)
warnings.warn("of the caller", stacklevel=2)
warnings.warn("far above", stacklevel=9)
logging.basicConfig(format="%(pathname)s:%(lineno)d %(funcName)s %(message)s")
logging.warning("who", stack_info=True)
logging.warning("above", stacklevel=2)


def deep(n):
    try:
        return deep(n + 1)
    except RecursionError:
        return n


print(deep(0))


def frames():
    here = sys._getframe()
    while here is not None:
        yield here.f_code.co_filename, here.f_code.co_name
        here = here.f_back


print(list(frames()))
