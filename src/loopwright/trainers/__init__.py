"""Trainers: the training loop as short functions over the ports. Also evaluation, checkpoints and the run folder."""
