"""The composition root: config in, ready objects out. The only module that sees the whole config."""
