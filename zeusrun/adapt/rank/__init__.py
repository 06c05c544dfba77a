"""A batch size that adapts while the training runs."""
