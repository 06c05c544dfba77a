"""An elastic training, seen by its launcher: how many ranks it should have."""
