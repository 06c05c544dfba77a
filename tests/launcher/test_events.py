"""What is shown and kept of a run while it goes on."""

from __future__ import annotations

import pytest

from zeusrun.launcher.events import Messages, Noted, Warned


def test_a_warning_is_kept_and_a_note_is_not_and_one_of_a_kind_is_enough():
    said = []
    messages = Messages(said.append)
    messages.note("a note")
    messages.warn("a warning")
    for kind in ("clock", "clock", "source"):
        messages.warn_once(kind, f"about the {kind}")
    warned = ["a warning", "about the clock", "about the source"]
    assert said == [Noted("a note"), *map(Warned, warned)]
    assert messages.warnings == warned


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(5, "Input/output error", "/run/events"), "/run/events cannot be read: Input/o"),
        (OSError("it is away"), "sidecar cannot be read: it is away; "),
        (OSError(), "sidecar cannot be read: OSError; "),
    ],
)
def test_a_source_that_cannot_be_read_is_warned_of_once_and_the_run_continues(error, told):
    messages = Messages(lambda _event: None)
    for _ in range(2):
        with messages.reading("sidecar"):
            raise error
    (warned,) = messages.warnings
    assert warned.startswith(told)
