"""NVML queries that return ``None`` for what the GPU, the driver or the user's rights lack.

Callers pass the module ``pynvml``, which is untyped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def unless_unsupported(nvml: Any, query: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - untyped module
    """Run a query; return ``None`` if the GPU, the driver or the user's rights do not allow it.

    Raises:
        pynvml.NVMLError: For any other reason, such as a lost GPU.
    """
    try:
        return query(*arguments)
    except (
        nvml.NVMLError_NotSupported,
        nvml.NVMLError_FunctionNotFound,  # a driver older than the query
        nvml.NVMLError_NoPermission,
    ):
        return None


def first_answer(nvml: Any, names: tuple[str, ...], *arguments: Any) -> Any:  # noqa: ANN401 - untyped module
    """Run a query that has several names, the newest first.

    Returns:
        The first answer; ``None`` if pynvml and the driver have no name in common.

    Raises:
        pynvml.NVMLError: As ``unless_unsupported``.
    """
    for name in names:
        query = getattr(nvml, name, None)
        answer = None if query is None else unless_unsupported(nvml, query, *arguments)
        if answer is not None:
            return answer
    return None
