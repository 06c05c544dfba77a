"""How the ranks of a data-parallel training agree on gradients or parameters."""
