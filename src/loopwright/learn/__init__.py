"""The learner: packing, losses, optimiser."""
