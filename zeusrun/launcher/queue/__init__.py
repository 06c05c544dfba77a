"""Which submit may start now, and on which GPUs."""
