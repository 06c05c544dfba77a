"""Policy ``zeus``."""
