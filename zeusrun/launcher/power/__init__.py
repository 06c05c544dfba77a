"""Which power limit to hold while a training runs."""
