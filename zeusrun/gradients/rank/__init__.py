"""Statistics of gradients, computed inside the ranks."""
