"""Trainers: short functions over the ports that can be read aloud."""
