"""Choosing a batch size from past trials. Pure: values in, values out, the caller owns the rest."""
