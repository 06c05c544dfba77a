"""Runs submits in jobs of Slurm."""
