"""The rank's side of the part ``pace``."""
