"""A stand-in for crontab(1)."""

from __future__ import annotations

import tempfile

import pytest


@pytest.fixture
def crontab(tmp_path, monkeypatch):
    """Put a crontab(1) of our own on the path, which keeps a file."""
    spool, script = tmp_path / "spool", tmp_path / "bin" / "crontab"
    script.parent.mkdir()
    script.write_text(
        "#!/bin/sh\n"
        f"spool='{spool}'\n"
        'case "$1" in\n'
        '-l) [ -e "$spool" ] || { echo "no crontab for me" >&2; exit 1; }; cat "$spool";;\n'
        '-r) rm "$spool";;\n'
        '-) cat > "$spool";;\n'
        "esac\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # its lock is the user's
    return spool
