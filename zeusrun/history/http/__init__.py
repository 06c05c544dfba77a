"""A history on a zeusrun server, over HTTP."""
