"""Says what is wrong with a Kubernetes object: what an API server and its webhooks would refuse.

``check`` takes any object. It knows the schemas of several versions of Kubernetes, the models of
Kubeflow Trainer, and the rules of ``kubernetes_rules.py``, which no schema shows.

The definitions (CRDs) of Kubeflow Trainer are not in the repository. If the variable
``ZEUSRUN_TEST_CRDS`` names their folder (``manifests/base/crds`` of github.com/kubeflow/trainer),
``check`` reads them too, with their rules in CEL. Tests of the CRDs have the mark ``needs_crds``.
"""

from __future__ import annotations

import functools
import json
import os
import re
import typing
from datetime import datetime
from pathlib import Path

import celpy
import jsonschema
import kubernetes_validate
import pytest
import yaml
from pydantic import AwareDatetime, BaseModel, TypeAdapter, ValidationError

from tests.kubernetes_rules import check_code, check_names, check_values, join

VERSIONS = ("1.31", "1.37")  # the first in which podFailurePolicy is stable; the newest
FOLDER = "ZEUSRUN_TEST_CRDS"
TRAINER = "trainer.kubeflow.org"
needs_crds = pytest.mark.skipif(
    FOLDER not in os.environ,
    reason=f"set {FOLDER} to the folder manifests/base/crds of github.com/kubeflow/trainer",
)


def check(document, old=None) -> list[str]:
    """Return what is wrong with an object, each text with the field; empty if it is right.

    Args:
        document: The object, as it is sent.
        old: What it replaces; ``None`` when it is created.
    """
    try:
        document = json.loads(json.dumps(document, allow_nan=False))
    except (TypeError, ValueError) as error:  # a date of YAML, for example
        return [f"it is not JSON: {error}"]
    if not all(isinstance(document.get(key), str) for key in ("apiVersion", "kind")):
        return ["apiVersion and kind are required"]
    if document["apiVersion"].startswith(f"{TRAINER}/"):
        wrong = check_model(document) + check_crd(document)
        if not wrong and find_crd(document["kind"]):
            wrong = check_rules(document, old)
    else:
        wrong = _check_core(document)
    if wrong:
        return wrong  # the rest expects values of the right types
    if document["kind"] == "TrainingRuntime":
        for each in document["spec"]["template"].get("spec", {}).get("replicatedJobs", ()):
            job = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "spec": each["template"].get("spec", {}),
            }
            wrong += [f"{each['name']}: {text}" for text in _check_core(job)]
    return [*wrong, *check_names(document), *check_values(document), *check_code(document)]


def _name(path):
    return functools.reduce(join, path, "") or "(all)"


def _check_core(document):
    wrong = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            wrong.append(f"{_name(error.absolute_path)}: {error.message} (Kubernetes {version})")
        except kubernetes_validate.SchemaNotFoundError as error:
            wrong.append(error.message)
    return wrong


def check_model(document) -> list[str]:
    """Compare an object of Kubeflow Trainer with the models of ``kubeflow-trainer-api``.

    The models themselves ignore unknown fields, and turn some values into other types.
    """
    from kubeflow_trainer_api import models  # takes a second

    version = document["apiVersion"].removeprefix(f"{TRAINER}/")
    model = getattr(models, f"Trainer{version.capitalize()}{document['kind']}", None)
    return list(_walk_model(model, document, "")) if model else ["no such apiVersion and kind"]


def _walk_model(kind, value, path):
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Union and inner[1:] == (type(None),):  # optional: absent, but not null
        yield from _walk_model(inner[0], value, path)
    elif origin in (list, dict):
        if isinstance(value, origin):
            for key, each in value.items() if origin is dict else enumerate(value):
                yield from _walk_model(inner[-1], each, join(path, key))
        else:
            yield f"{path}: must be a {origin.__name__}"
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        yield from _walk_fields(kind.model_fields, value, path)
    else:
        try:
            kind = AwareDatetime if kind is datetime else kind
            TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            yield f"{path}: {error.errors()[0]['msg']}"


def _walk_fields(fields, value, path):
    if "one_of_schemas" in fields:  # a quantity; a number or a name
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            yield f"{path}: must be a number or a string"
    elif not isinstance(value, dict):
        yield f"{path}: must be an object"
    else:
        fields = {each.alias or name: each for name, each in fields.items()}
        yield from (f"{join(path, key)}: unknown field" for key in value if key not in fields)
        for key, field in fields.items():
            if key in value:
                yield from _walk_model(field.annotation, value[key], join(path, key))
            elif field.is_required():
                yield f"{join(path, key)}: required"


def find_crd(kind):
    """Return the schema of a kind of Kubeflow Trainer; ``None`` without the folder of the CRDs."""
    folder = os.environ.get(FOLDER)
    return _load(f"{folder}/{TRAINER}_{kind.lower()}s.yaml") if folder else None


@functools.cache
def _load(path):
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the files have 10,000 lines
    crd = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=loader)
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {  # as every object has it; the models check it
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    }
    return schema


def check_crd(document) -> list[str]:
    """Compare an object with its CRD, if there is one; a field without a schema is an error."""
    schema = find_crd(document["kind"])
    if schema is None:
        return []
    errors = _Validator(schema, format_checker=_FORMATS).iter_errors(document)
    return [f"{_name(error.absolute_path)}: {error.message} (CRD)" for error in errors]


def _check_type(validator, kind, value, schema):
    if value is None and schema.get("nullable"):
        return
    yield from jsonschema.Draft202012Validator.VALIDATORS["type"](validator, kind, value, schema)
    keeps = {"additionalProperties", "x-kubernetes-preserve-unknown-fields"} & schema.keys()
    if isinstance(value, dict) and not keeps:
        for key in value.keys() - schema.get("properties", {}).keys():  # the server drops it
            yield jsonschema.ValidationError("unknown field", path=[key])


def _check_int_or_string(_, wanted, value, schema):
    if wanted and (isinstance(value, bool) or not isinstance(value, int | str)):
        yield jsonschema.ValidationError("must be an integer or a string")


def _check_list(_, kind, value, schema):
    if kind != "atomic" and isinstance(value, list):
        keys = [_key(each, schema) for each in value]
        for each in {each for each in keys if keys.count(each) > 1}:
            yield jsonschema.ValidationError(f"{each} is there twice")


def _key(item, schema):
    keys = schema.get("x-kubernetes-list-map-keys", ())
    part = {key: item.get(key) for key in keys} if keys and isinstance(item, dict) else item
    return json.dumps(part, sort_keys=True)


_Validator = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    {
        "type": _check_type,
        "x-kubernetes-int-or-string": _check_int_or_string,
        "x-kubernetes-list-type": _check_list,
    },
)
_FORMATS = jsonschema.FormatChecker(formats=())
_FORMATS.checks("int32")(lambda value: not isinstance(value, int) or -(2**31) <= value < 2**31)
_FORMATS.checks("int64")(lambda value: not isinstance(value, int) or -(2**63) <= value < 2**63)


def check_rules(document, old=None) -> list[str]:
    """Evaluate the CEL rules of the object's CRD (``x-kubernetes-validations``).

    Source: "Validation rules" in the Kubernetes documentation of CustomResourceDefinitions. Rules
    see default values, and of the metadata only the names. A rule with ``oldSelf`` runs where
    there was a value before. A rule that cannot be evaluated counts as broken. Dates stay
    strings: no rule compares them.

    Raises:
        ValueError: If the CRDs cannot be found.
    """
    schema = find_crd(document["kind"])
    if schema is None:
        raise ValueError(f"the rules are in the CRDs: set {FOLDER}")
    before = None if old is None else _as_rules_see(schema, old)
    return list(_walk_rules(schema, _as_rules_see(schema, document), before, ""))


def _as_rules_see(schema, document):
    metadata = document.get("metadata", {})
    if "name" not in metadata and "generateName" in metadata:  # the server makes one before
        metadata = {**metadata, "name": metadata["generateName"][:58] + "xxxxx"}
    names = {key: metadata[key] for key in ("name", "generateName") if key in metadata}
    return {**_with_defaults(schema, document), "metadata": names}


def _below(schema, key):
    """Return the schema of a value in an object or, for a number, in a list."""
    inner = schema.get("items" if isinstance(key, int) else "additionalProperties")
    return schema.get("properties", {}).get(key, inner if isinstance(inner, dict) else {})


def _with_defaults(schema, value):
    if isinstance(value, list):
        return [_with_defaults(_below(schema, 0), each) for each in value]
    if not isinstance(value, dict):
        return value
    known = schema.get("properties", {})
    value = {key: each["default"] for key, each in known.items() if "default" in each} | value
    return {key: _with_defaults(_below(schema, key), each) for key, each in value.items()}


def _walk_rules(schema, value, old, path):
    for rule in schema.get("x-kubernetes-validations", ()):
        if old is not None or not re.search(r"\boldSelf\b", rule["rule"]):
            yield from _evaluate(rule, {"self": value, "oldSelf": old}, path or "(all)")
    if isinstance(value, dict):
        for key, each in value.items():
            before = old.get(key) if isinstance(old, dict) else None
            yield from _walk_rules(_below(schema, key), each, before, join(path, key))
    elif isinstance(value, list):  # only the items of a list with keys have an old value
        keyed = old if schema.get("x-kubernetes-list-map-keys") else None
        before = {_key(each, schema): each for each in keyed or ()}
        for number, each in enumerate(value):
            same = before.get(_key(each, schema))
            yield from _walk_rules(_below(schema, number), each, same, join(path, number))


def _evaluate(rule, values, path):
    text = rule["rule"]
    try:
        activation = {name: celpy.json_to_cel(value) for name, value in values.items()}
        result = _compile(text).evaluate(activation)
    except (celpy.CELParseError, celpy.CELEvalError) as error:
        yield f"{path}: cannot evaluate {text!r}: {error}"
        return
    if not isinstance(result, celpy.celtypes.BoolType):
        yield f"{path}: {text!r} is neither true nor false, but {result!r}"
    elif not result:
        yield f"{path}: {rule.get('message', text)} (rule)"


@functools.cache
def _compile(rule):
    environment = _environment()
    return environment.program(environment.compile(rule))


_environment = functools.cache(celpy.Environment)  # takes 0.3 s
