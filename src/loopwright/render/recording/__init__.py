"""Records the model calls of one agent as turns, conversations, and chains to train on.

Every policy records with it, over HTTP or not. It does no I/O."""
