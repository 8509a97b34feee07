"""A sender or a receiver of weights in a process of its own, which can be stopped or killed in the middle.

    python member.py send HOW      writes the file, prints the update as JSON, and sends
    python member.py receive HOW   reads the update as JSON, receives, and prints the checksum of what it got

HOW is `whole`, or `stopped` or `killed` after the first bucket.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import zlib
from pathlib import Path

import torch

from loopwright.engines.http.wire import update_from_json, update_to_json
from loopwright.models import broadcast
from loopwright.models.broadcast import BroadcastSender, receive_weights
from loopwright.testing.weight_file import weight_file
from loopwright.types import BroadcastBackend, WeightBroadcast

HARMS = {"stopped": signal.SIGSTOP, "killed": signal.SIGKILL}
BUCKET = 1 << 20
BUCKETS = 16


def tensors() -> dict[str, torch.Tensor]:
    return {"a": torch.arange(BUCKET * BUCKETS // 4, dtype=torch.float32)}


def suffer(how: str) -> None:
    """Have the process end or stop after the first bucket."""
    real = broadcast._Group.buckets

    def buckets(self, data):
        for number, bucket in enumerate(real(self, data)):
            yield bucket
            if number == 0 and how in HARMS:
                os.kill(os.getpid(), HARMS[how])

    broadcast._Group.buckets = buckets  # type: ignore[method-assign]


def send(folder: Path, seconds: float) -> None:
    file = weight_file(tensors(), folder / "sent.safetensors")
    sender = BroadcastSender(
        file, "127.0.0.1", workers=1, backend=BroadcastBackend.GLOO, seconds=seconds, bucket_bytes=BUCKET
    )
    print(json.dumps(update_to_json(1, sender.update)), flush=True)
    sender.send(sender.stop)


def receive() -> None:
    _, update = update_from_json(json.loads(sys.stdin.readline()))
    if not isinstance(update, WeightBroadcast):
        raise TypeError("only broadcasts are received here")
    print("came", flush=True)
    received = receive_weights(update)["a"]
    print(zlib.crc32(received.numpy().data), flush=True)
    # The other side decides when it has seen enough.
    time.sleep(60)


if __name__ == "__main__":
    suffer(sys.argv[2])
    if sys.argv[1] == "send":
        send(Path(sys.argv[3]), float(sys.argv[4]))
    else:
        receive()
