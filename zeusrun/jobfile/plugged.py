"""Sections of a job file that are plugged in: their modules are imported if a job has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_core import core_schema

from zeusrun.jobfile.section import Section

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema


class Plugged:
    """The type of a field: a section that ``load`` imports, or nothing."""

    def __init__(self, load: Callable[[], type[Section]]) -> None:
        self.load = load

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._read)

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        kind = self.load()
        found = handler(core_schema.nullable_schema(kind.__pydantic_core_schema__))
        return {**found, "default": None, "description": kind.summary}

    def _read(self, value: object) -> Section | None:
        if value is None or isinstance(value, Section):
            return value
        return self.load().model_validate(value)
