"""Tasks in: files, Python generators, and the sampler that orders them."""
