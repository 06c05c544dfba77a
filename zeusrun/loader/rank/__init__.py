"""The section ``loader`` inside a rank."""
