"""What the recipes of docs/architecture.md ask for, one file each."""
