"""The verb ``plot``."""
