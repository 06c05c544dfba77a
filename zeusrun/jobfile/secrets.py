"""Which arguments and variables of a job are secret, and how they are written, read and masked.

A text of ``args`` or ``env`` is secret by its marker (``{secret: TEXT}``, ``{secret_file: PATH}``),
by its name (``--api-key TEXT``, ``HF_TOKEN: TEXT``), or in part by its form, as a URL with a
password is. ``{plain: TEXT}`` is not secret, whatever its name and form.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from zeusrun.jobfile.placeholders import PLACEHOLDERS
from zeusrun.jobfile.section import dotted
from zeusrun.jobfile.yaml_reader import MAX_BYTES, read_job_file
from zeusrun.redaction import MASK, Mask, mask_values

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zeusrun.jobfile.yaml_reader import JobDocument, JobFileProblem, KeyPath

    Place = TypeVar("Place", bound="int | KeyPath")

# A part of a name between underscores. Not TOKENS: MAX_TOKENS is a number.
_SECRET_PART = re.compile(
    r"\w*(?:TOKEN|SECRETS?|PASSWORDS?|PASSWD|PASSPHRASES?|CREDENTIALS?|APIKEYS?|ACCESSKEY"
    r"|SECRETKEY|PRIVATEKEY)|KEYS?|PASS|PWD|JWT|AUTH",
    re.ASCII,
)
# Switches; tokens and keys of models and data; what is about a secret and is none.
_NO_SECRET = re.compile(
    r"(?:USE|NO|HAS|IS|WITH|SKIP|NUM|N|MAX|MIN|PER)_.*"
    r"|(?:.*_)?(?:PAD|EOS|BOS|UNK|SEP|CLS|MASK|CLASS|IMAGE|IMG|SPECIAL|NEXT|STOP)_TOKEN"
    r"|(?:.*_)?TOKEN_(?:IDS?|INDEX)"
    r"|(?:.*_)?(?:IMAGE|IMG|TEXT|LABEL|TARGET|INPUT|OUTPUT|CAPTION|PROMPT|DATA|DATASET|BATCH"
    r"|FEATURE|STATE|METRIC|SORT|GROUP|QUERY|JSON)_KEYS?"
    r"|.*_(?:DIMS?|SIZES?|LEN|LENGTH|LIMIT|COUNT|HEADS?|DROPOUT|DROP|LOSS|RATE|WEIGHT|TYPE|METHOD"
    r"|MODE|SOCK|FILE|PATH|DIR|URL)",
    re.ASCII,
)
# The secret is the group. "host:8080/a@b" has a port and no password.
_FORMS = (
    re.compile(r"://[^:@/\s]*:(?!\d+/)(\S{1,512})@"),
    re.compile(
        r"[?&][\w-]*(?:token|password|passwd|pwd|secret|api_?key|signature|sig)=([^&#\s]+)",
        re.IGNORECASE,
    ),
    re.compile(r"authorization: *\w+ +(\S+)", re.IGNORECASE),
    re.compile(
        r"(?<![A-Za-z0-9])(hf_[A-Za-z0-9]{20,}|gh[oprsu]_[A-Za-z0-9]{30,}|github_pat_\w{30,}"
        r"|sk-(?=[\w-]{0,99}\d)(?=[\w-]{0,99}[A-Z])[\w-]{20,}|glpat-[\w-]{20,}"
        r"|xox[abeprs]-[\w-]{20,}|AIza[\w-]{35}|(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"
        r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,})"
    ),
    re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]+)"),
    re.compile(r"https?://([^:@/\s]{16,512})@"),  # a token in place of a user
    # {"api_key": "…"}, Server=h;Password=…
    re.compile(r"(?:password|passwd|pwd|api_?key|secret)[\"']\s*:\s*[\"']([^\"']+)", re.IGNORECASE),
    re.compile(r";\s*(?:password|pwd)\s*=\s*([^;]+)", re.IGNORECASE),
)
# A switch, or a reference such as Hydra's ${oc.env:NAME}.
_NO_VALUE = re.compile(r"(?i:true|false|none|null|)|\$?\$\{[^{}]*\}")
_OPTION = re.compile(r"(?:--?|\+{1,2})?(?P<name>[A-Za-z_][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
_SECRET, _FILE, _PLAIN = "secret", "secret_file", "plain"
_SHAPES = {
    "args": "'args' must be a list of texts, such as  args: [--lr, \"0.1\"]",
    "env": "'env' must be a section of names and values, such as  env: {OMP_NUM_THREADS: \"1\"}",
}
_WRITE = (
    "write a text, {secret: a text}, {secret_file: the path of a file that contains it} or "
    "{plain: a text}"
)


@dataclass(frozen=True)
class Secret:
    """What is secret of one text of a job."""

    parts: tuple[str, ...]  # as written in the job file: ``$$`` for ``$``
    file: str | None = None  # the absolute path of the file with the text; ``None``: the job file


def is_secret_name(name: str) -> bool:
    """Whether the name of a variable or an option is that of a secret: ``HF_TOKEN``, ``api-key``.

    ``PWD`` alone is the shell's working directory.
    """
    upper = name.upper().replace("-", "_")
    found = name != "PWD" and any(map(_SECRET_PART.fullmatch, upper.split("_")))
    return found and _NO_SECRET.fullmatch(upper) is None


def find_secrets(words: Sequence[str]) -> dict[int, Secret]:
    """Return the secrets among arguments, by their places.

    Both ``--api-key TEXT`` and ``--api-key=TEXT`` are recognised, and ``section.api_key=TEXT``.
    """
    found, before = {}, ""  # the option whose value comes next
    for place, word in enumerate(words):
        option = _OPTION.fullmatch(word)
        name, value = (option["name"].rpartition(".")[2], option["value"]) if option else ("", None)
        is_option = option is not None and word.startswith("-")
        if is_option and value is None:
            before = name
            continue
        if value is None or (not is_option and is_secret_name(before)):
            name, value = before, word
        before = ""
        if parts := _secret_parts(name, value) or _secret_parts("", word):
            found[place] = Secret(parts)
    return found


def _secret_parts(name: str, value: str) -> tuple[str, ...]:
    """Return what is secret of a value."""
    if is_secret_name(name) and not _NO_VALUE.fullmatch(value):
        return (value,)
    parts = {part for form in _FORMS for part in form.findall(value)}
    if len(words := value.split()) > 1:
        parts.update(part for secret in find_secrets(words).values() for part in secret.parts)
    return tuple(sorted(part for part in parts if not _NO_VALUE.fullmatch(part)))


def looks_secret(text: str) -> bool:
    """Whether a part of a text is secret by its form: a token, a URL with a password."""
    return any(form.search(text) for form in _FORMS)


def read_secrets(document: JobDocument, folder: Path) -> dict[KeyPath, Secret]:
    """Replace the markers in ``args`` and ``env`` by their texts; return what is secret.

    ``folder`` is that of the job file, to which paths are relative.
    """
    secrets: dict[KeyPath, Secret] = {}
    plain: set[KeyPath] = set()
    for path, value in _items(document.data).items():
        if isinstance(value, dict):
            text, secret = _read_marked(document, path, value, folder)
            document.data[str(path[0])][path[1]] = text
            if secret is None:
                plain.add(path)
            else:
                secrets[path] = secret
    for path, secret in _find_in(_items(document.data)).items():
        if (marked := secrets.get(path)) is not None:  # the script may print a part of it
            secrets[path] = replace(marked, parts=(*marked.parts, *secret.parts))
        elif path not in plain:
            secrets[path] = secret
    return secrets


def _items(data: Mapping[str, Any]) -> dict[KeyPath, Any]:
    """Return the items of ``args`` and ``env``, by their places."""
    args, env = data.get("args"), data.get("env")
    items: dict[KeyPath, Any] = {}
    if isinstance(args, (list, tuple)):
        items.update({("args", place): item for place, item in enumerate(args)})
    if isinstance(env, Mapping):
        items.update({("env", name): item for name, item in env.items()})
    return items


def _find_in(items: Mapping[KeyPath, Any]) -> dict[KeyPath, Secret]:
    """Return what is secret by its name or form."""
    texts = {path: item if isinstance(item, str) else "" for path, item in items.items()}
    words = find_secrets([text for path, text in texts.items() if path[0] == "args"])
    found: dict[KeyPath, Secret] = {("args", place): each for place, each in words.items()}
    for path, text in texts.items():
        if path[0] != "env":
            continue
        if is_secret_name(str(path[1])):
            found[path] = Secret((text,))
        elif parts := _secret_parts("", text):
            found[path] = Secret(parts)
    return found


def _read_marked(
    document: JobDocument, path: KeyPath, value: Mapping[str, Any], folder: Path
) -> tuple[str, Secret | None]:
    """Return the text of a marker, and ``None`` if it is plain."""
    kind = next(iter(value)) if len(value) == 1 else ""
    text, file, key = value.get(kind), None, dotted(path)
    if kind not in (_SECRET, _FILE, _PLAIN):
        document.complain(path, f"'{key}' is a section; {_WRITE}")
    elif not isinstance(text, str):
        document.complain((*path, kind), f"'{key}.{kind}' must be text")
    elif kind == _FILE:
        file = os.path.abspath(folder / os.path.expanduser(text))  # noqa: PTH100, PTH111
        try:
            text = _read_file(file).replace("$", "$$")
        except ValueError as error:
            # The path may be the secret itself, written in the wrong place.
            is_path = "/" in text and not _secret_parts("", text)
            shown = file if is_path else f"a file in {folder}"
            then = f"write it with  {make_file(shlex.quote(file) if is_path else 'PATH')}"
            document.complain((*path, kind), f"'{key}.{kind}' names {shown}, {error}; {then}")
            text = ""
    text = text if isinstance(text, str) else ""
    return text, None if kind == _PLAIN else Secret((text,), file=file)


def _read_file(path: str) -> str:
    """Return the text of a file without a newline at its end; raise ``ValueError`` with a reason.

    A link is followed: a container may mount its secrets as links.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - opening a pipe would wait
            raise ValueError("which is not a regular file")
        with open(path, "rb") as file:  # noqa: PTH123 - a text
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ValueError("which does not exist") from None
    except OSError as error:
        raise ValueError(f"which cannot be read: {error.strerror}") from None
    if len(content) > MAX_BYTES:
        raise ValueError(f"which is larger than {MAX_BYTES // 1024} KiB")
    try:
        text = re.sub(r"\r?\n\Z", "", content.decode())
    except UnicodeDecodeError:
        raise ValueError("which is not UTF-8 text") from None
    if not text:
        raise ValueError("which is empty")
    if "\0" in text:
        raise ValueError("which contains a NUL character")
    return text


def make_file(path: str) -> str:
    """Return the shell command that writes standard input into a file for the user alone."""
    return f"install -D -m 600 /dev/stdin {path}"


def find_exposed(secrets: Mapping[KeyPath, Secret], source: Path) -> list[str]:
    """Return a warning for each file with a secret that other users may read."""
    warnings = []
    for path in sorted({secret.file or str(source) for secret in secrets.values()}):
        with contextlib.suppress(OSError):
            if os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH):  # noqa: PTH116
                then = f"run  chmod 600 {shlex.quote(path)}"
                warnings.append(f"other users can read {path}, which contains a secret; {then}")
    return warnings


def hide_secret(problem: JobFileProblem, secrets: Mapping[KeyPath, Secret]) -> JobFileProblem:
    """Return the problem without secrets, even if one was written in the place of a name."""
    section, *rest = problem.path or ("",)
    name = str(rest[0]) if rest else None
    if section not in _SHAPES:
        return problem
    if name is None:
        sentence = _SHAPES[str(section)]
    elif problem.path[:2] in secrets:
        sentence = (
            f"'{dotted(problem.path[:2])}' cannot be used, and as a secret it is not shown; it "
            "must be text without NUL characters, with '$$' for a plain '$'"
        )
    elif section == "env" and not re.fullmatch(r"[\w.-]{0,64}", name):
        # NAME=value, or NAME "value" without its colon
        begun = re.match(r"\w*", name)
        sentence = (
            f"'env.{begun[0] if begun else ''}…' is not a valid name for an environment variable: "
            "letters, digits and _ only, then a colon and its value"
        )
    else:
        return problem
    return replace(problem, sentence=sentence)


def mask_texts(texts: Mapping[Place, str], secrets: Mapping[Place, Secret]) -> dict[Place, str]:
    """Return arguments or variables as they are shown: each without the secrets of all."""
    parts = [
        form for secret in secrets.values() for part in secret.parts for form in unescaped(part)
    ]
    names = [f"${{{name}}}" for name in PLACEHOLDERS]  # placeholders are not masked
    pieces = [p for p in mask_values(parts).pieces if not any(p in name for name in names)]
    known = {place: secrets[place].parts if place in secrets else () for place in texts}
    return {
        place: Mask(tuple(sorted({*pieces, *known[place]}, key=len, reverse=True))).text(text)
        for place, text in texts.items()
    }


def mask_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command as they are shown."""
    return [*mask_texts(dict(enumerate(words)), find_secrets(words)).values()]


def mask_items(
    args: Sequence[str], env: Mapping[str, str], secrets: Mapping[KeyPath, Secret]
) -> tuple[list[str], dict[str, str]]:
    """Return ``args`` and ``env`` of a job as they are shown."""
    shown = [*mask_texts(_items({"args": args, "env": env}), secrets).values()]
    return shown[: len(args)], dict(zip(env, shown[len(args) :], strict=True))


def write_secrets(record: dict[str, Any], secrets: Mapping[KeyPath, Secret]) -> None:
    """Mask the secrets in the record of a job, in a form that ``read_secrets`` reads."""
    texts = _items(record)
    shown, recognised = mask_texts(texts, secrets), _find_in(texts)
    for path, text in texts.items():
        secret, section = secrets.get(path), record[str(path[0])]
        if secret is not None and secret.file is not None:
            section[path[1]] = {_FILE: secret.file}
        elif secret is not None or shown[path] != text:
            section[path[1]] = {_SECRET: MASK}
        elif path in recognised:
            section[path[1]] = {_PLAIN: text}


def load_secrets(path: Path) -> dict[KeyPath, Secret]:
    """Return the secrets of a job file, whatever else is wrong with it.

    Raises:
        JobFileError: If the file cannot be read.
    """
    return read_secrets(read_job_file(path, ()), path.parent)


def unescaped(part: str) -> tuple[str, str]:
    """Return a text as written, and with ``$`` for ``$$`` as the script gets it."""
    return part, part.replace("$$", "$")
