"""Policy ``auto``."""
