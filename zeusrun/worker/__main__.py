"""One rank: ``worker/__main__.py [--plain] (-m MODULE | SCRIPT) [ARG ...]``, started by torchrun.

This module becomes the ``__main__`` of the script: ``rank.main`` takes its names away.
"""

if __name__ == "__main__":
    import sys

    known = frozenset(sys.modules)
    from zeusrun.worker.rank import main

    main(known)
