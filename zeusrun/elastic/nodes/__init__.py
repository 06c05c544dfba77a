"""Elastic training on several hosts: an agent on each, and their messages."""
