"""Backends: schedulers of other machines, each in a package of its own."""
