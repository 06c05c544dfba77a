"""From pydantic's JSON Schema of a job to the one for editors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

ANY_TEXT = {"type": ["string", "number"]}
"""What may stand where a text is passed on: YAML's numbers are taken as they are written."""

ENV_TEXT = {
    "anyOf": [
        ANY_TEXT,
        *(
            {
                "type": "object",
                "description": description,
                "properties": {marker: ANY_TEXT},
                "required": [marker],
                "additionalProperties": False,
            }
            for marker, description in (
                ("secret", "A value that zeusrun masks in records and in what it prints."),
                ("plain", "A value that is no secret, whatever its name."),
            )
        ),
    ]
}
"""What may stand for an environment variable: a text, or one that is marked."""


def finish_schema(schema: dict[str, Any], own: Iterable[str]) -> dict[str, Any]:
    """Return the schema of a job file.

    Args:
        schema: Of the model.
        own: Fields of the model that are no keys of the file.
    """
    for name in own:
        del schema["properties"][name]
    schema["required"] = [name for name in schema["required"] if name not in own]
    schema["oneOf"] = [{"required": ["script"]}, {"required": ["module"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "zeusrun job",
        "description": "One recurring training job.",
    }
