"""Chooses the next trial of a job. Pure: values in, a value out; reads no file, device or store."""
