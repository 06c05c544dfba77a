print(sorted(dir()))
print(list(vars()))
x: int = 1
import builtins
import gc
import sys
import threading

import __main__

print(__name__, __file__, __package__, __cached__ if "__cached__" in vars() else "-", __doc__)
print(__annotations__, type(__loader__), __builtins__ is builtins)
print(getattr(__loader__, "path", None), getattr(__loader__, "name", None))
print(__spec__ and (__spec__.name, __spec__.origin, __spec__.has_location, __spec__.parent))
print(__main__.__dict__ is globals(), sys.modules["__main__"] is __main__, repr(__main__))
print(sys.argv, sys.path[0], [p for p in sys.path if "zeusrun" in p])
print(sys.flags, sys.warnoptions, sys._xoptions, sys.dont_write_bytecode)
print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace(), sys.getprofile())
print(gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug(), gc.callbacks)
print([t.name for t in threading.enumerate()], sys.exc_info(), sys.displayhook, sys.excepthook)
print(sys.unraisablehook, threading.excepthook, sys.breakpointhook)
print([k for k in ("ps1", "last_type", "last_value", "tracebacklimit") if hasattr(sys, k)])
print(
    sys.executable == sys._base_executable, sys.executable, sys.prefix, sys.getfilesystemencoding()
)
