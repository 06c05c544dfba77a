"""What a training reports, and how far it is."""
