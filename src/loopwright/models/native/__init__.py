"""A decode step in C: its source, how it is compiled on the user's machine, and how it is called."""
