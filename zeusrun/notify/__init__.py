"""Notices of how a recurrence ended."""
