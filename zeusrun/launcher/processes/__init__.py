"""The processes that a submit starts and ends."""
