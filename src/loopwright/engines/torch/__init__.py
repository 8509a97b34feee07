"""The embedded engine: continuous batching over a transformers model, stepping in the compute thread."""
