"""Stands before the installed torch on the path of the agent, and only there."""
