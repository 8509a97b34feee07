"""The run folder: its layout, and everything that reads it, beside a run or after it. Nothing here needs torch,
computes or changes what a run has stored."""
