"""The embedded engine: continuous batching over a transformers model, in its own thread."""
