"""Histories in TinyDB files."""
