"""A part in four files, which proves the recipe of docs/architecture.md."""
