"""Turns messages into token ids and back. A sampled stream is extended, never tokenised again."""
