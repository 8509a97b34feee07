"""The embedded engine: continuous batching over a transformers model. Its steps run in the compute thread."""
