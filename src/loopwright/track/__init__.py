"""Metrics, events, the console and the report."""
