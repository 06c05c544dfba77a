"""Tests of the part ``loader``."""
