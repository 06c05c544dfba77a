"""Replays recorded or made-up jobs through the policies, with everything charged."""
