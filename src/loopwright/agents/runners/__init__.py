"""Runners start the user's programs, one for each rollout, and end everything that a program started. Nothing here
knows tokens: programs talk to a gateway."""
