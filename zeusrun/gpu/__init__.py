"""Devices that draw power: what they are, what they used, and the limit they are held to."""
