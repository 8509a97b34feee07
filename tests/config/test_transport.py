"""Which way new weights take, by where the engine is."""

from __future__ import annotations

import pytest

from loopwright.config.transport import IN_THIS_PROCESS, ON_THIS_MACHINE, Transport, transport_to


@pytest.mark.parametrize(
    ("url", "transport"),
    [
        ("http://127.0.0.1:8000", Transport.FILE),
        ("http://127.1.2.3:8000", Transport.FILE),
        ("http://localhost:8000/", Transport.FILE),
        ("http://[::1]:8000", Transport.FILE),
        ("http://10.0.0.7:8000", Transport.BROADCAST),
        ("https://gpu-3.example", Transport.BROADCAST),
        ("http://[fe80::1]:8000", Transport.BROADCAST),
    ],
)
def test_an_engine_on_this_machine_reads_a_file_and_others_receive(url: str, transport: Transport) -> None:
    assert transport_to(url).transport is transport


def test_the_choice_is_shown_with_its_reason() -> None:
    assert str(transport_to("http://10.0.0.7:8000")) == (
        "broadcast (10.0.0.7 may be another machine, which cannot open files of this one)"
    )
    assert str(transport_to("http://localhost:1")) == "file (localhost is this machine, which shares its memory)"
    assert IN_THIS_PROCESS.transport is Transport.IN_PLACE
    assert ON_THIS_MACHINE.transport is Transport.FILE
