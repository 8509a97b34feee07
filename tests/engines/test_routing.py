"""Which engine of a pool gets a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from loopwright.engines import routing
from loopwright.engines.routing import GROUP_SLACK, SESSION_SLACK, Router
from loopwright.types import GenerateRequest, Sampling


@dataclass(eq=False)
class Place:
    busy: int = 0
    engine: object = "an engine"


class Scene:
    """A router over engines that finish no call."""

    def __init__(self, *busy: int) -> None:
        self.router: Router[Place] = Router()
        self.places = [Place(calls) for calls in busy]

    def send(self, id: str, group: str = "", *, avoid: Sequence[int] = ()) -> int:
        """The number of the engine that gets the request."""
        request = GenerateRequest(id, (1,), Sampling(), affinity=group)
        avoided = [self.places[number] for number in avoid]
        running = [one for one in self.places if one.engine is not None and one not in avoided]
        chosen = self.router.choose(request, running, avoided)
        chosen.busy += 1
        return self.places.index(chosen)


def test_the_least_busy_gets_it_and_the_first_of_those() -> None:
    scene = Scene(3, 1, 1)
    assert [scene.send(f"s{number}/0") for number in range(4)] == [1, 2, 1, 2]


def test_a_session_stays_although_others_have_fewer_calls() -> None:
    scene = Scene(0, 0)
    home = scene.send("s/0")
    scene.places[home].busy = SESSION_SLACK
    assert scene.send("s/1") == home


def test_an_overloaded_engine_is_left_and_the_session_stays_where_it_went() -> None:
    scene = Scene(0, 2)
    assert scene.send("s/0") == 0
    scene.places[0].busy = 3 + SESSION_SLACK + 1
    assert scene.send("s/1") == 1
    scene.places[0].busy = 0
    assert scene.send("s/2") == 1, "its conversation is in that cache now"


def test_a_session_leaves_an_engine_that_is_gone() -> None:
    scene = Scene(0, 5)
    assert scene.send("s/0") == 0
    scene.places[0].engine = None
    assert scene.send("s/1") == 1


def test_a_home_that_has_failed_the_request_is_avoided() -> None:
    scene = Scene(0, 5)
    assert scene.send("g/0/0", "g") == 0
    assert scene.send("g/0/0", "g", avoid=[0]) == 1
    assert scene.send("g/0/1", "g") == 1


def test_the_members_of_a_group_go_to_the_engine_that_has_their_prompt() -> None:
    scene = Scene(4, 4, 4)
    assert [scene.send(f"a/{member}/0", "a") for member in range(4)] == [0, 0, 0, 0]
    assert [scene.send(f"b/{member}/0", "b") for member in range(4)] == [1, 1, 1, 1]


def test_a_group_does_not_pile_up_on_one_engine_while_others_are_idle() -> None:
    scene = Scene(0, 0, 0)
    for member in range(8):
        scene.send(f"g/{member}/0", "g")
    calls = sorted(place.busy for place in scene.places)
    assert calls[-1] <= GROUP_SLACK + 2
    assert calls[0] >= 1


def test_a_session_goes_where_it_was_and_not_where_its_group_is() -> None:
    scene = Scene(0, 0)
    first = [scene.send(f"g/{member}/0", "g") for member in range(6)]
    assert set(first) == {0, 1}
    assert [scene.send(f"g/{member}/1", "g") for member in range(6)] == first


def test_without_a_session_and_a_group_nothing_is_remembered() -> None:
    scene = Scene(0, 0)
    assert [scene.send("abc") for _ in range(4)] == [0, 1, 0, 1]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "REMEMBERED", 2)
    scene = Scene(0, 0)
    for name in "abc":
        scene.send(f"{name}/0", f"group {name}")
    assert [len(homes._homes) for homes in (scene.router._sessions, scene.router._groups)] == [2, 2]
    scene.places[0].busy, scene.places[1].busy = 2, 1
    assert scene.send("a/1") == 1, "it is forgotten"
    assert scene.send("c/1") == 0
