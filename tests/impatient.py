"""Imported by the forks of zeusrun: no command waits for seconds for a server that a test stops."""

from __future__ import annotations

from zeusrun.history.shared import spool, store

spool.READ_S = store.PATIENCE_S = 0.1
