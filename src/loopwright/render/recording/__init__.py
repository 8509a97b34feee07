"""What one agent's model calls add up to: turns, the conversations that they belong to, and the chains to train on.

Every policy records with it, over HTTP or not. It does no I/O."""
