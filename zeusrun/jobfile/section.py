"""What all sections of a job file have in common: strict keys, and errors as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from zeusrun.jobfile.messages import collect_problems, describe_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from zeusrun.jobfile.yaml_reader import JobDocument, JobFileProblem

_Kind = TypeVar("_Kind", bound="Section")


class Section(BaseModel):
    """Frozen, strict (``true`` and ``"1"`` are not 1), closed to unknown keys."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, validate_default=True
    )


def list_keys(
    section: type[Section], hidden: Collection[str] = (), name: str = ""
) -> dict[str, list[str]]:
    """Return the keys of a section and of those within it, by their dotted names.

    ``hidden`` are fields that are no keys.
    """
    found = {name: [key for key in section.model_fields if key not in hidden]}
    for key, field in section.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, Section):
                found |= list_keys(kind, hidden, f"{name}.{key}" if name else key)
    return found


def validate(
    kind: type[_Kind],
    document: JobDocument,
    values: Mapping[str, object] | None = None,
    hidden: Collection[str] = (),
    show: Callable[[JobFileProblem], JobFileProblem] = lambda problem: problem,
) -> _Kind:
    """Return the section that a document, or else ``values`` from it, describes.

    ``hidden`` are fields that are no keys of the file; ``show`` masks a problem.

    Raises:
        JobFileError: If anything is wrong. It names each problem, as ``load_spec`` does.
    """
    problems, found = [*document.problems], None
    seen = {problem.path for problem in problems}
    values = document.data if values is None else values
    given = set(hidden) & document.data.keys() & values.keys()
    errors: list[Mapping[str, Any]] = [{"type": "extra_forbidden", "loc": (key,)} for key in given]
    try:
        found = kind.model_validate(values)
    except ValidationError as error:
        errors += error.errors(include_url=False)
    # Outside of the handler: the cause would quote what was given, passwords included.
    described = describe_errors(errors, list_keys(kind, hidden), document)
    problems += [show(each) for each in described if each.path not in seen]
    if found is None or problems:
        raise collect_problems(document, problems)
    return found
