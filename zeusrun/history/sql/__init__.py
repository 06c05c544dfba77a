"""Histories in an SQL database: SQLite or PostgreSQL."""
