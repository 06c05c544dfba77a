"""A part in four files, written by the recipe in docs/architecture.md."""
