"""Trainers: the training loop as short functions over the ports. Also evaluation, and judging again."""
