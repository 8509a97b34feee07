"""The parts of `loopwright.testing.sglang_server`, a fake of SGLang's HTTP server. As in SGLang, `frontend` speaks HTTP
and knows the label of the weights, and `scheduler` has batches, keys and values. The protocol is that of SGLang 0.5.18,
as its source describes it. Nothing here has been compared with a running SGLang."""
