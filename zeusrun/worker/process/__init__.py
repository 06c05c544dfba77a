"""The process of a rank: how it begins, runs the script of the user, and records its end."""
