"""What a rank sees by itself: one module a library, loaded when the script imports the library."""
