"""What people look at: values in, renderables out."""
