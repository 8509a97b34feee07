"""Metrics, events and the console."""
