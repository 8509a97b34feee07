"""TransferQueue with its default back end (two storage units in memory, over ZeroMQ) on a local Ray.

Ray is told of 16 CPUs, because the queue's actors reserve more than this machine has. One sample goes in by `kv_put`
and out by its key; 64 go in and out by one `kv_batch_put` and one `kv_batch_get`, the way that it recommends for speed.
What a pass has put is cleared after it.
"""

from __future__ import annotations

from typing import Any

from benchmarks.workers.port import Port, Stopwatch

PARTITION = "samples"


def main(port: Port) -> None:
    import ray
    import torch
    import transfer_queue

    spec = port.spec
    torch.set_num_threads(1)
    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False)
    transfer_queue.init()
    port.ready("TransferQueue", "ray", "torch", "tensordict")
    for number, watch in enumerate(port.rounds()):
        puts, gets = {}, {}
        for batch in spec["batches"]:
            puts[batch], gets[batch] = _pass(transfer_queue, f"{number}-{batch}", spec, batch)
        port.answer(watch.stop(), samples=spec["samples"], put_seconds=puts, get_seconds=gets)
    transfer_queue.close()
    ray.shutdown()


def _pass(queue: Any, prefix: str, spec: dict[str, Any], batch: int) -> tuple[float, float]:
    """Seconds of putting and of getting."""
    keys = [[f"{prefix}-{start + i}" for i in range(batch)] for start in range(0, spec["samples"], batch)]
    fields = [_fields(batch, spec["tokens"]) for _ in keys]
    watch = Stopwatch()
    for names, values in zip(keys, fields, strict=True):
        if batch == 1:
            queue.kv_put(names[0], PARTITION, values)
        else:
            queue.kv_batch_put(names, PARTITION, values)
    put = watch.stop()["seconds"]
    watch = Stopwatch()
    for names in keys:
        if len(queue.kv_batch_get(names, PARTITION)) != batch:
            raise RuntimeError("a sample is missing")
    got = watch.stop()["seconds"]
    queue.kv_clear([name for names in keys for name in names], PARTITION)
    return put, got


def _fields(batch: int, tokens: int) -> Any:
    import torch
    from tensordict import TensorDict

    mask = torch.arange(tokens).repeat(batch, 1) >= tokens // 8
    streams = {
        "ids": torch.randint(0, 49152, (batch, tokens), dtype=torch.int32),
        "mask": mask,
        "logprobs": torch.where(mask, -torch.rand(batch, tokens), 0.0),
        "versions": torch.where(mask, 3, -1).to(torch.int32),
    }
    # One sample is a plain dictionary without a batch dimension.
    if batch == 1:
        return {name: stream[0] for name, stream in streams.items()}
    return TensorDict(streams, batch_size=[batch])


if __name__ == "__main__":
    main(Port())
