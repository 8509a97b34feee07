"""Whether a run has lost, doubled or trained anything that it should not have. Only reads."""
