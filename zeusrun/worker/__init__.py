"""Runs inside each rank: the user's script under observation. Imports torch only with it."""
