"""Ray: the only room that imports it. It places our parts on other processes and machines, and keeps them running."""
