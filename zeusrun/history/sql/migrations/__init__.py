"""Alembic's migrations of the tables of a shared history; ``migrate.py`` runs them."""
