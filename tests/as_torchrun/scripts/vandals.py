"""Scripts that break the interpreter for all who come after them, and end with 3."""

import atexit
import builtins
import gc
import io
import os
import resource
import signal
import sys
import threading
import time


def boom(*args, **kwargs):
    raise RuntimeError("vandalised")


def clears_globals():
    keep = sys.exit
    globals().clear()
    keep(3)


def replaces_main():
    sys.modules["__main__"] = sys
    del sys.modules["sys"]


def clears_modules():
    keep = dict(sys.modules)
    builtins.kept = keep
    sys.modules.clear()


def patches():
    builtins.open = io.open = os.open = boom
    builtins.print = boom
    os.getpid = os.write = os.fsync = boom
    time.time = time.monotonic = boom
    os.path.join = os.fspath = boom


def patches_ends():
    sys.exit = os._exit = boom
    atexit._run_exitfuncs = threading._shutdown = boom
    gc.get_objects = gc.collect = boom
    raise SystemExit(3)


def is_a_daemon():
    os.closerange(3, 256)


def has_no_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))


def has_no_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


WAYS = {
    "clears_globals": clears_globals,
    "replaces_main": replaces_main,
    "clears_modules": clears_modules,
    "patches": patches,
    "patches_ends": patches_ends,
    "is_a_daemon": is_a_daemon,
    "has_no_descriptors": has_no_descriptors,
    "has_no_files": has_no_files,
    "moves": lambda: (os.mkdir("gone"), os.chdir("gone"), os.rmdir("../gone")),
    "umask": lambda: os.umask(0o777),
    "environ": lambda: os.environ.clear(),
    "path": lambda: (sys.path.clear(), sys.meta_path.clear(), sys.path_hooks.clear()),
    "argv": lambda: delattr(sys, "argv"),
    "blocks": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()),
    "ignores": lambda: [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 13, 15, 57)],
    "collects": lambda: (gc.disable(), gc.freeze(), gc.set_debug(gc.DEBUG_SAVEALL)),
    "new_group": lambda: os.setpgrp() if os.getpgrp() != os.getpid() else None,
}
leave = sys.exit
WAYS[sys.argv[1]]()
leave(3)
