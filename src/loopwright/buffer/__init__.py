"""Groups between production and training, over durable storage."""
