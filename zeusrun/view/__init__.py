"""Turns values into text and tables for people, and into JSON and CSV for programs."""
