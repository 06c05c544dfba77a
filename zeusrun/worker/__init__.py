"""What runs inside each rank: the user's script, watched. The only room that imports torch."""
