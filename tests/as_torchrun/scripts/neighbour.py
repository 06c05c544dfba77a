import warnings

warnings.warn("at import", UserWarning)


def warn():
    warnings.warn("of the caller", DeprecationWarning, stacklevel=2)
    warnings.warn("not shown", DeprecationWarning)
