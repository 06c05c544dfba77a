"""Which variables of ``env`` are secret, and how they are written down.

``DB_URL: {secret: "postgres://..."}`` is one by its marker, ``HF_TOKEN: hf_...`` by its name.
``PAD_TOKEN: {plain: "<pad>"}`` is none in spite of its name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from zeusrun.jobfile.yaml_reader import Problem, read_job_file
from zeusrun.redaction import MASK, mask_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from zeusrun.jobfile.yaml_reader import JobDocument

# A part of a name between underscores. Not TOKENS: MAX_TOKENS is a number.
_SECRET_PART = re.compile(
    r"\w*(?:TOKEN|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASES?|CREDENTIALS?|APIKEYS?|ACCESSKEY"
    r"|SECRETKEY|PRIVATEKEY)|KEYS?|PASS|PWD|JWT",
    re.ASCII,
)
_PLAIN_NAME = re.compile(r"[\w.-]{0,64}")
_SECRET, _PLAIN = "secret", "plain"
_WRITE = "write a text, {secret: a text} or {plain: a text}"


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name is taken for a secret: ``HF_TOKEN``, ``AWS_ACCESS_KEY_ID``.

    ``PWD`` alone is the shell's working directory.
    """
    parts = name.upper().split("_")
    return name != "PWD" and any(map(_SECRET_PART.fullmatch, parts))


def read_secrets(document: JobDocument) -> frozenset[str]:
    """Put the texts in the place of the markers in ``env``; return the names that are secret."""
    env = document.data.get("env")
    if not isinstance(env, dict):
        return frozenset()
    plain: set[str] = set()
    secrets: set[str] = set()
    for name, value in env.items():
        if is_secret_name(name):
            secrets.add(name)
        if not isinstance(value, dict):
            continue
        env[name] = ""
        kinds = set(value)
        if len(kinds) != 1 or not kinds <= {_SECRET, _PLAIN}:
            document.problems.append(Problem(("env", name), f"'env.{name}' is a section; {_WRITE}"))
            continue
        (kind,) = kinds
        (plain if kind == _PLAIN else secrets).add(name)
        if isinstance(value[kind], str):
            env[name] = value[kind]
        else:
            path = ("env", name, kind)
            document.problems.append(Problem(path, f"'env.{name}.{kind}' must be text"))
    return frozenset(secrets - plain)


def hide_problems(problems: Sequence[Problem], secrets: AbstractSet[str]) -> list[Problem]:
    """Return problems that do not quote a secret, nor what might be one with a slip of the pen."""
    hidden = []
    for problem in problems:
        if problem.path == ("env",):
            hidden.append(_NO_SECTION)
        elif _is_of(problem, secrets):
            hidden.append(_hide(problem))
        elif problem.path[:1] == ("env",) and not _PLAIN_NAME.fullmatch(str(problem.path[1])):
            hidden.append(_hide_name(problem))  # NAME=value, or NAME "value" without its colon
        else:
            hidden.append(problem)
    return hidden


def write_secrets(record: dict[str, Any], secrets: AbstractSet[str]) -> None:
    """Mask the secrets in the record of a job, so that ``read_secrets`` knows them again."""
    env: dict[str, str] = record["env"]
    mask = mask_values(_forms(env, secrets))
    record["args"] = [mask.text(text) for text in record["args"]]
    record["env"] = {name: _written(name, mask.text(value), secrets) for name, value in env.items()}


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


def masked_names(env: Mapping[str, str], secrets: AbstractSet[str]) -> list[str]:
    """Return the secrets of which only the mask is left, sorted."""
    return sorted(name for name in secrets if env[name] == MASK)


def _written(name: str, value: str, secrets: AbstractSet[str]) -> str | dict[str, str]:
    if name in secrets:
        return {_SECRET: MASK}
    return {_PLAIN: value} if is_secret_name(name) else value


def _forms(env: Mapping[str, str], secrets: AbstractSet[str]) -> list[str]:
    return [form for name in secrets for form in unescaped(env[name])]


def _is_of(problem: Problem, secrets: AbstractSet[str]) -> bool:
    return len(problem.path) > 1 and problem.path[0] == "env" and problem.path[1] in secrets


_NO_SECTION = Problem(
    ("env",), "'env' must be a section of names and values, such as  env: {OMP_NUM_THREADS: \"1\"}"
)


def _hide_name(problem: Problem) -> Problem:
    begun = re.match(r"\w*", str(problem.path[1]))
    sentence = (
        f"'env.{begun[0] if begun else ''}…' is no name for an environment variable: letters, "
        "digits and _ only, then a colon and its value"
    )
    return Problem(problem.path, sentence)


def _hide(problem: Problem) -> Problem:
    name = problem.path[1]
    sentence = (
        f"'env.{name}' cannot be used, and as a secret it is not shown; it must be text without "
        "NUL characters, with '$$' for a plain '$'"
    )
    return Problem(problem.path, sentence)
