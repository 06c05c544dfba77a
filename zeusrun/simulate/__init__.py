"""Replays recorded jobs through the policies, with everything charged."""
