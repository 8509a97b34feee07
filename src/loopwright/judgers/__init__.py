"""Judgers: built-in ones and the user's own functions."""
