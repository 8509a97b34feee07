"""A gateway elsewhere in the config: what cannot work, and what has no effect."""

from __future__ import annotations

import pytest

SERVED = "agent={kind: callable, path: 'agent.py:agent', judger: integer_answer}"
HERE = "gateway={url: 'http://127.0.0.1:8100', key_env: GATEWAY_KEY%s}"


def test_a_gateway_elsewhere_needs_an_address_and_a_key_and_all_problems_are_told(minimal, problems_of):
    missing = "gateway.key_env: missing"
    for url, words in (
        ("gateway.example", "'gateway.example' is no address"),
        ("http://0.0.0.0:8100", "is no address that others can ask"),
        ("http://[::]:8100", "is no address that others can ask"),
        ("http://me:secret@host", "holds a password"),
        ("http://host:99999", "is no address"),
        ("http://a host", "is no address"),
        (" http://host", "is no address"),
        ("http://0:8100", "is no address that others can ask"),
        ("http://0.0.0.0.:8100", "is no address that others can ask"),
        ("http://[::ffff:0.0.0.0]:8100", "is no address that others can ask"),
        ("http://host?key=1", "is no address to which others can add a path"),
        ("http://host/#part", "is no address to which others can add a path"),
        ("http://host:0", "is no address to which others can add a path"),
        ("http://müller.example", "is no address to which others can add a path"),
    ):
        found = problems_of(minimal, SERVED, f"gateway={{url: '{url}'}}")
        assert any(one.startswith("gateway.url: ") and words in one for one in found), found
        assert any(one.startswith(missing) for one in found)


def test_the_missing_variable_of_its_key_is_named(minimal, problems_of, tmp_path, load_text):
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "?"}\n')
    (tmp_path / "agent.py").write_text("def agent(task, base_url, api_key): ...\n")
    (problem,) = problems_of(minimal, SERVED, HERE % "", files=True, env={})
    assert "gateway.key_env: the environment variable GATEWAY_KEY is not set" in problem
    (problem,) = problems_of(minimal, SERVED, HERE % "", files=True, env={"GATEWAY_KEY": "two\nlines"})
    assert "no HTTP header can carry" in problem
    # Nobody has to be there to check a config.
    loaded = load_text(minimal, SERVED, HERE % "", files=True, env={"GATEWAY_KEY": "k" * 20})
    assert loaded.warnings == ()


@pytest.mark.parametrize("idle", ["port: 81", "host: 0.0.0.0", "advertise_url: 'http://me'"])
def test_where_the_run_would_listen_has_no_effect(load_text, minimal, idle):
    (warning,) = load_text(minimal, SERVED, HERE % f", {idle}").warnings
    assert warning.startswith(f"gateway.{idle.partition(':')[0]}: has no effect")


def test_thinking_and_urls_without_a_port_or_with_a_path_are_fine(load_text, minimal):
    door = "rollout.door={host: 0.0.0.0, advertise_url: 'http://me:8200'}"
    for url in ("http://gateway.example", "https://gateway.example/loop/"):
        changed = f"gateway={{url: '{url}', key_env: GATEWAY_KEY, thinking: template}}"
        assert load_text(minimal, SERVED, changed, door).warnings == ()


def test_a_door_that_the_gateway_may_not_reach_is_a_warning(load_text, minimal):
    (warning,) = load_text(minimal, SERVED, "gateway={url: 'http://gateway.example', key_env: GATEWAY_KEY}").warnings
    assert "the run's door is at the loopback" in warning
    relay = "gateway={url: 'http://gateway.example', key_env: GATEWAY_KEY, relay: true}"
    assert load_text(minimal, SERVED, relay).warnings == (), "the run dials the gateway"


def test_without_agents_that_talk_to_it_or_without_a_url_it_has_no_effect(load_text, minimal):
    (warning,) = load_text(minimal, HERE % "").warnings
    assert warning.startswith("gateway.url: has no effect: no agent talks to the gateway")
    (warning,) = load_text(minimal, SERVED, "gateway.key_env=GATEWAY_KEY").warnings
    assert warning.startswith("gateway.key_env: has no effect")


def test_a_run_that_dials_needs_a_gateway_to_dial(minimal, problems_of):
    (problem,) = problems_of(minimal, SERVED, "gateway.relay=true")
    assert problem.startswith("gateway.relay: true, and there is no gateway that the run could dial")
