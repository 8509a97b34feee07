"""Loading, converting and addressing transformers models; the attention that engine and learner share."""
