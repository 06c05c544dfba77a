"""Histories in an SQL database: SQLite, PostgreSQL, MySQL or MariaDB."""
