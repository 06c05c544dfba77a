"""The server of a shared history: its API, Zeus's routes, and its page."""
