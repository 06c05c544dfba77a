"""Stores the trials of every job."""
