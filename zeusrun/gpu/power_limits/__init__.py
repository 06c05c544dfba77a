"""Holding GPUs to power limits, and putting back what was set before."""
