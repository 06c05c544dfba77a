"""NVML's answers as values: what a GPU, a driver or a permission lacks is ``None``.

Whoever imported ``pynvml`` hands the module down; it is untyped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def unless_unsupported(nvml: Any, query: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - untyped module
    """Ask, and return ``None`` where this GPU, this driver or this user gets no answer.

    Raises:
        pynvml.NVMLError: For any other reason, such as a lost GPU.
    """
    try:
        return query(*arguments)
    except (
        nvml.NVMLError_NotSupported,
        nvml.NVMLError_FunctionNotFound,  # a driver older than the question
        nvml.NVMLError_NoPermission,
    ):
        return None


def first_answer(nvml: Any, names: tuple[str, ...], *arguments: Any) -> Any:  # noqa: ANN401 - untyped module
    """Ask a question that goes by several names, the newest first.

    Returns:
        The first answer; ``None`` if no name of it is known to both pynvml and the driver.

    Raises:
        pynvml.NVMLError: As ``unless_unsupported``.
    """
    for name in names:
        query = getattr(nvml, name, None)
        answer = None if query is None else unless_unsupported(nvml, query, *arguments)
        if answer is not None:
            return answer
    return None
