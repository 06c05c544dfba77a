"""One rank, which torchrun starts: ``__main__.py [--plain] (-m MODULE | SCRIPT) [ARG ...]``.

This module becomes the ``__main__`` of the script: ``rank.main`` takes its names away.
"""

if __name__ == "__main__":
    import sys

    known = frozenset(sys.modules)
    from zeusrun.worker.process.rank import main

    main(known)
