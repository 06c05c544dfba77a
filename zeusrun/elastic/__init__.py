"""Elastic training: what the job file says of it, and what the launcher does for it."""
