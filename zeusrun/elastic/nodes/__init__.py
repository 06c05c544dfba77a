"""Elastic training on several hosts: an agent on each, and what they tell each other."""
