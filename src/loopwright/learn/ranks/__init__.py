"""A learner of several ranks: processes that hold a shard of the model each, and one object in the driver that cuts
each step into their parts. What a part computes is `learn.execute`, as in one process."""
