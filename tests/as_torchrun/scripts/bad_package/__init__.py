raise RuntimeError("at the import of a package")
