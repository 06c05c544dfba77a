"""Which variables of ``env`` are secret, and how they are written.

``DB_URL: {secret: "postgres://..."}`` is secret by its marker, ``HF_TOKEN: hf_...`` by its name.
``PAD_TOKEN: {plain: "<pad>"}`` is not secret, whatever its name.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zeusrun.jobfile.yaml_reader import read_job_file
from zeusrun.redaction import MASK, mask_values

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from zeusrun.jobfile.yaml_reader import JobDocument, JobFileProblem

# A part of a name between underscores. Not TOKENS: MAX_TOKENS is a number.
_SECRET_PART = re.compile(
    r"\w*(?:TOKEN|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASES?|CREDENTIALS?|APIKEYS?|ACCESSKEY"
    r"|SECRETKEY|PRIVATEKEY)|KEYS?|PASS|PWD|JWT",
    re.ASCII,
)
_SECRET, _PLAIN = "secret", "plain"


def is_secret_name(name: str) -> bool:
    """Whether the name says that a variable is secret: ``HF_TOKEN``, ``AWS_ACCESS_KEY_ID``.

    ``PWD`` alone is the shell's working directory.
    """
    parts = name.upper().split("_")
    return name != "PWD" and any(map(_SECRET_PART.fullmatch, parts))


def read_secrets(document: JobDocument) -> frozenset[str]:
    """Replace the markers in ``env`` by their texts; return the names that are secret."""
    env = document.data.get("env")
    if not isinstance(env, dict):
        return frozenset()
    secrets = {name for name in env if is_secret_name(name)}
    for name, value in env.items():
        if not isinstance(value, dict):
            continue
        kind = next(iter(value)) if len(value) == 1 else ""
        text = value.get(kind)
        env[name] = text if isinstance(text, str) else ""
        (secrets.discard if kind == _PLAIN else secrets.add)(name)
        if kind not in (_PLAIN, _SECRET):
            sentence = f"'env.{name}' is a section; write a text, {{secret: a text}} or "
            document.complain(("env", name), sentence + "{plain: a text}")
        elif not isinstance(text, str):
            document.complain(("env", name, kind), f"'env.{name}.{kind}' must be text")
    return frozenset(secrets)


def hide_secret(problem: JobFileProblem, secrets: AbstractSet[str]) -> JobFileProblem:
    """Return the problem without secrets, even if one was written in the place of a name."""
    section, *rest = problem.path or ("",)
    name = str(rest[0]) if rest else None
    if section != "env":
        return problem
    if name is None:
        sentence = (
            "'env' must be a section of names and values, such as  env: {OMP_NUM_THREADS: \"1\"}"
        )
    elif name in secrets:
        sentence = (
            f"'env.{name}' cannot be used, and as a secret it is not shown; it must be text "
            "without NUL characters, with '$$' for a plain '$'"
        )
    elif not re.fullmatch(r"[\w.-]{0,64}", name):  # NAME=value, or NAME "value" without its colon
        begun = re.match(r"\w*", name)
        sentence = (
            f"'env.{begun[0] if begun else ''}…' is not a valid name for an environment variable: "
            "letters, digits and _ only, then a colon and its value"
        )
    else:
        return problem
    return replace(problem, sentence=sentence)


def write_secrets(record: dict[str, Any], secrets: AbstractSet[str]) -> None:
    """Mask the secrets in the record of a job, in a form that ``read_secrets`` reads."""
    env: dict[str, str] = record["env"]
    mask = mask_values([form for name in secrets for form in unescaped(env[name])])
    record["args"] = [mask.text(text) for text in record["args"]]
    for name, value in env.items():
        plain = {_PLAIN: mask.text(value)} if is_secret_name(name) else mask.text(value)
        record["env"][name] = {_SECRET: MASK} if name in secrets else plain


def load_secrets(path: Path) -> dict[str, str]:
    """Return the secret variables of a job file and their values, whatever else is wrong with it.

    Raises:
        JobFileError: If the file cannot be read.
    """
    document = read_job_file(path, ())
    names = read_secrets(document)
    env = document.data.get("env")
    return {name: str(env[name]) for name in names} if isinstance(env, dict) else {}


def unescaped(value: str) -> tuple[str, str]:
    """Return a value as written, and with ``$`` for ``$$`` as the script gets it."""
    return value, value.replace("$$", "$")
