"""Which submits may start, and on which GPUs."""
