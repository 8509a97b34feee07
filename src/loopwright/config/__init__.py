"""The schema of a run, its layers with their provenance, and the checks across fields. Torch-free."""
