"""The replay buffer: holds groups between production and training, in durable storage."""
