"""The files that the recipes of docs/architecture.md ask for, one for each recipe."""
