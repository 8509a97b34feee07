"""The measured processes, one module each. A worker loads once, then does one round per command it is given."""
