"""A script that has never heard of zeusrun, and never reports."""

print("hello from a plain script")
