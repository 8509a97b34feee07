"""SGLang servers as engines. They were tested with `loopwright.testing.sglang_server`, never with a real one."""
