"""Adapters of the engine port."""
