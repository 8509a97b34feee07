"""Fakes for faults and speed, shipped for your tests too."""
