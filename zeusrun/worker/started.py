"""A rank that a script has started itself: ``started.py (-m MODULE | SCRIPT) [ARG ...]``.

This module becomes the ``__main__`` of the script, as ``__main__.py`` does for ranks of torchrun.
"""

if __name__ == "__main__":
    import sys

    known = frozenset(sys.modules)
    try:
        from zeusrun.worker.child import main
    except ImportError:  # the script has changed PYTHONPATH
        import os

        sys.orig_argv.remove(sys.argv[0])
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - as it was to be
    main(known)
