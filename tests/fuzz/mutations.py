"""Bad files: pieces of a small corpus, mutated, each of which must end in a value or its error.

A few hundred inputs of every kind are part of the default tests. For more::

    ZEUSRUN_FUZZ_INPUTS=20000 python -m pytest tests/fuzz -s

which also prints, of every kind, how long they took, the longest, and how much memory the process
has grown by since the first thousand.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
INPUTS = int(os.environ.get("ZEUSRUN_FUZZ_INPUTS", "200"))
MAX_BYTES = 20_000
HUNG_S = 30
MAX_GROWTH_BYTES = 32 << 20

_BATCH = 1000  # hypothesis remembers the inputs of a run, which would be growth of its own
TOKENS = tuple(
    text.encode("utf-8", "surrogateescape")
    for text in (
        *("0", "-1", "1e999", "-1e999", "1e308", "NaN", "Infinity", "-0.0", "0x10", "1_0", ".inf"),
        *("9" * 20, "9" * 400, "9" * 5000, "1" + "0" * 400, "-" + "9" * 30, "0." + "1" * 400),
        *("null", "~", "true", "{}", "[]", '""', '"\\ud800"', '"\\u0000"', "\\", "'", '"', "`"),
        *("[" * 300, "{" * 40, '{"a":' * 300, "[" * 5000, "- " * 200, "? " * 50, "(" * 200),
        *("&a [*a, *a]", "*a", "<<: *a", "&a", "!!python/object/apply:os.system [exit]", "!!set"),
        *("!!binary aGk=", "!x", "%YAML 1.1", "---\n", "...\n", "|\n", ">-\n", "\t", "# ", ": "),
        *("${", "${trial}", "$$", "$", "\0", "\r\n", "\n\n", "\x1b[31m", "\u2028", "é", "\ufeff"),
        *("\udcff\udcfe", "\udced\udca0\udc80", "\udc80", "\udcf8\udc88", "\0" * 100),  # no UTF-8
        *("GPU-", "MIG-", "NoDevFiles", ",,", "٣", "../" * 20, "/dev/zero", "a" * 3000, " " * 300),
    )
)


def pieces(kind: str) -> list[bytes]:
    """Return the corpus of a kind."""
    return [path.read_bytes() for path in sorted((CORPUS / kind).iterdir())]


_NUMBER = st.integers(0, (1 << 16) - 1)
CHANGES = st.lists(st.tuples(_NUMBER, _NUMBER, _NUMBER, _NUMBER), max_size=6)


def change(content: bytes, how_to: tuple[int, int, int, int], corpus: list[bytes]) -> bytes:
    """Apply one change: what is done, where, to how much, and with what."""
    how, where, size, what = how_to
    start = where % (len(content) + 1)
    end = min(len(content), start + 1 + size % 40)
    part, token, other = content[start:end], TOKENS[what % len(TOKENS)], corpus[what % len(corpus)]
    from_other = size * 131 % (len(other) + 1)
    line = content.rfind(b"\n", 0, start) + 1
    line_end = content.find(b"\n", start) + 1 or len(content)
    return (
        lambda: content[:start] + bytes([what % 256]) + content[start + 1 :],
        lambda: content[:start] + bytes(byte ^ 1 << what % 8 for byte in part) + content[end:],
        lambda: content[:start],
        lambda: content[:start] + content[end:],
        lambda: content[:start] + part * (2 + what % 40) + content[end:],
        lambda: content[:start] + token + content[start:],
        lambda: content[:start] + token + content[end:],
        lambda: content[:start] + other[from_other:],
        lambda: content[:start] + other[from_other : from_other + 40] + content[start:],
        lambda: content[:line] + content[line:line_end] * 2 + content[line_end:],
        lambda: content[:line] + content[line_end:] + content[line:line_end],
        lambda: _replace_value(content, start, token),
    )[how % 12]()


def _replace_value(content: bytes, start: int, token: bytes) -> bytes:
    """Put a token in the place of the next value, up to where the value ends."""
    colon = content.find(b":", start) + 1
    if not colon:
        return content
    end = min(
        (place for sign in b",}\n" if (place := content.find(bytes([sign]), colon)) > 0),
        default=len(content),
    )
    return content[:colon] + b" " + token + content[end:]


def mutated(kind: str) -> st.SearchStrategy[bytes]:
    """Return pieces of a kind's corpus with none to six changes."""
    corpus = pieces(kind)

    def mutate(piece: bytes, changes: list[tuple[int, int, int, int]]) -> bytes:
        for each in changes:
            piece = change(piece, each, corpus)[:MAX_BYTES]
        return piece

    return st.builds(mutate, st.sampled_from(corpus), CHANGES)


def run_inputs(check, *strategies) -> None:
    """Call ``check`` with ``INPUTS`` inputs; look for hangs and for growth of memory.

    Raises:
        Exception: What ``check`` raised first, with the smallest input that hypothesis found.
    """
    slowest_s, grown_from, started_s = 0.0, None, time.perf_counter()

    def guarded(values):
        nonlocal slowest_s
        before_s = time.perf_counter()
        with no_hang():
            check(*values)
        slowest_s = max(slowest_s, time.perf_counter() - before_s)

    for batch in range(-(-INPUTS // _BATCH)):
        chosen = settings(
            max_examples=min(_BATCH, INPUTS - batch * _BATCH),
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        seed(batch)(chosen(given(st.tuples(*strategies))(guarded)))()
        if batch == 0:
            grown_from = resident_bytes()
    grown = resident_bytes() - grown_from
    took_s = time.perf_counter() - started_s
    if INPUTS > _BATCH:
        sys.stderr.write(
            f"\n{check.__name__}: {INPUTS} inputs, {took_s:.0f} s, the longest "
            f"{slowest_s * 1000:.0f} ms, {grown / 2**20:+.1f} MiB\n"
        )
    assert grown < MAX_GROWTH_BYTES


@contextmanager
def no_hang():
    """Fail after half a minute; the slowest input known takes a tenth of a second."""

    def fail(*_):
        raise AssertionError(f"no end after {HUNG_S} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(HUNG_S)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
