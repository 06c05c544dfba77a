"""An elastic training inside a rank: its process groups, its state, and when its size changes."""
