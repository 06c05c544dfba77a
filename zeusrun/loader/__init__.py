"""The part ``loader``: how many worker processes the data loader of the training has."""
