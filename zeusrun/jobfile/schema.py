"""The JSON Schema of job files."""

from __future__ import annotations

from typing import Any

from zeusrun.jobfile.run_on_section import list_words
from zeusrun.jobfile.spec import OWN, JobSpec


def spec_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file, for editors: descriptions, defaults, no other keys."""
    schema = JobSpec.model_json_schema()
    for name in OWN:
        del schema["properties"][name]
    schema["required"] = [name for name in schema["required"] if name not in OWN]
    sections = schema["properties"]["history"]
    sections["anyOf"] = [{"type": "string"}, {"$ref": sections.pop("$ref")}]
    schema["properties"]["run_on"]["anyOf"] += [{"const": word} for word in list_words()]
    schema["oneOf"] = [{"required": ["script"]}, {"required": ["module"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "zeusrun job",
        "description": "One recurring training job.",
    }
