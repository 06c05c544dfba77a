"""Maintains a machine and its runs: doctor, repair, gc, status."""
