"""Messages to token ids and back. A sampled stream is extended, never tokenised again."""
