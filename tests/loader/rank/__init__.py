"""Tests of the part ``loader`` inside a rank."""
