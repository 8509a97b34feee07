"""Agent loops, and the policy through which they reach the model."""
