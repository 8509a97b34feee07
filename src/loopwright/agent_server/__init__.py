"""The agent server: runs submitted trials of programs near their sandboxes, each id once. It knows no tokens and no
training; the programs talk to a gateway."""
