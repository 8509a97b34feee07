"""Loads, converts and proves transformers models. Also holds the attention that engine and learner share."""
