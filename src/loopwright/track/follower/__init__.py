"""`python -m loopwright.track.follower`: a process that sends the metrics of a run to W&B or MLflow.

It only reads files of the run folder, so nothing that happens to it can disturb the run: no slow import, no server that
is away, no error. It needs no other part of the package than the settings beside it.
"""
