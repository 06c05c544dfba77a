"""Runs the attempts of a recurrence one after the other."""
