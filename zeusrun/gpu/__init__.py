"""NVIDIA GPUs: which ones a job uses, their readings, and their power limits."""
