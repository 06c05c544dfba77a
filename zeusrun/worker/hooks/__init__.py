"""Hooks: one module for each library, loaded when the script imports that library."""
