"""What it does within a rank."""
