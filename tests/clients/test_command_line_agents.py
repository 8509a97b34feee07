"""Agents that people use, as they are: each solves a task with tools through the gateway and leaves one chain.

T1 is checked for each of them: what the chain trains on is what the engine received and sampled, id for id.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clients import NODE, PYTHON, Outcome, call_text, check_one_chain, play

pytestmark = pytest.mark.real

TASK = "Write a greeting into note.txt, then read it back."
GREETING = "grüße 🙂 „日本“"
WRITE = f"echo '{GREETING}'   > note.txt"
ANSWER = f"It says: {GREETING}."


def two_tool_turns(tool: str, field: str, *, last: str = ANSWER) -> list[str]:
    """What the model says: it writes the note, looks at it in two ways at once, and answers."""
    write = json.dumps({field: WRITE}, ensure_ascii=False, indent=1)
    read = json.dumps({field: "cat note.txt"}, separators=(" ,", " :\t"))
    count = f'{{"{field}": "wc -l < note\\u002etxt"}}'
    return [
        f"Ich schreibe für dich: {call_text(tool, write)}",
        f"{call_text(tool, read)}\n{call_text(tool, count)}",
        last,
    ]


def check_worked(home: Path, outcome: Outcome) -> None:
    assert outcome.code == 0, outcome.err
    assert (home / "note.txt").read_text() == f"{GREETING}\n"
    results = [message["content"] for message in outcome.conversation if message["role"] == "tool"]
    assert len(results) == 3
    # Calls that were made at once are answered in the order in which they end.
    assert any("日本" in result or json.dumps("日本")[1:-1] in result for result in results[1:])
    check_one_chain(outcome, turns=3)


def test_claude_code(tmp_path: Path) -> None:
    outcome = play(
        tmp_path,
        [
            *(str(NODE / "claude"), "-p", TASK, "--model", "policy"),
            *("--dangerously-skip-permissions", "--output-format", "json"),
        ],
        task=TASK,
        lines=two_tool_turns("Bash", "command"),
        environment={
            "ANTHROPIC_BASE_URL": "$URL",
            "ANTHROPIC_AUTH_TOKEN": "$KEY",
            "IS_SANDBOX": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_TELEMETRY": "1",
        },
    )
    check_worked(tmp_path, outcome)
    assert json.loads(outcome.out)["result"] == ANSWER
    assert min(outcome.asked) > 15_000


CODEX_CONFIG = """
model = "policy"
model_provider = "gateway"

[model_providers.gateway]
name = "gateway"
base_url = "$URL/v1"
env_key = "GATEWAY_KEY"
wire_api = "responses"
"""


def test_codex(tmp_path: Path) -> None:
    outcome = play(
        tmp_path,
        [
            *(str(NODE / "codex"), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            *("--json", "--disable", "plugins", TASK),
        ],
        task=TASK,
        lines=two_tool_turns("exec_command", "cmd"),
        environment={"GATEWAY_KEY": "$KEY"},
        files={".codex/config.toml": CODEX_CONFIG},
    )
    check_worked(tmp_path, outcome)
    events = [json.loads(line) for line in outcome.out.splitlines()]
    said = [event["item"]["text"] for event in events if event.get("item", {}).get("type") == "agent_message"]
    assert said[-1] == ANSWER


PATCH = f"""*** Begin Patch
*** Add File: note.txt
+{GREETING}
*** End Patch"""


def test_codex_edits_with_a_freeform_tool(tmp_path: Path) -> None:
    """Codex offers `apply_patch` to models that it knows by name."""
    outcome = play(
        tmp_path,
        [
            *(str(NODE / "codex"), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            *("--json", "--disable", "plugins", TASK),
        ],
        task=TASK,
        lines=[
            f"Ich schreibe für dich: {call_text('apply_patch', json.dumps({'input': PATCH}, indent=1))}",
            call_text("exec_command", '{"cmd": "cat note.txt"}'),
            ANSWER,
        ],
        environment={"GATEWAY_KEY": "$KEY"},
        files={".codex/config.toml": CODEX_CONFIG.replace('"policy"', '"gpt-5.5"')},
    )
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "note.txt").read_text() == f"{GREETING}\n"
    check_one_chain(outcome, turns=3)
    edited, read = [message["content"] for message in outcome.conversation if message["role"] == "tool"]
    assert "note.txt" in edited
    assert GREETING in read


GEMINI_SETTINGS = """
{"security": {"auth": {"selectedType": "gemini-api-key"}}, "telemetry": {"enabled": false},
 "privacy": {"usageStatisticsEnabled": false}, "general": {"enableAutoUpdate": false}}
"""


def test_gemini_cli(tmp_path: Path) -> None:
    outcome = play(
        tmp_path,
        [str(NODE / "gemini"), "-p", TASK, "-m", "gemini-2.5-pro", "--yolo", "--output-format", "json"],
        task=TASK,
        lines=two_tool_turns("run_shell_command", "command"),
        environment={
            "GOOGLE_GEMINI_BASE_URL": "$URL",
            "GEMINI_API_KEY": "$KEY",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        },
        files={".gemini/settings.json": GEMINI_SETTINGS},
    )
    check_worked(tmp_path, outcome)
    assert json.loads(outcome.out)["response"] == ANSWER


def test_mini_swe_agent(tmp_path: Path) -> None:
    done = call_text("bash", '{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}')
    outcome = play(
        tmp_path,
        [
            *(str(PYTHON / "mini"), "-y", "--exit-immediately", "-l", "0", "-m", "openai/policy", "-t", TASK),
            *("-c", "mini.yaml", "-c", "model.model_kwargs.api_base=$URL/v1", "-o", "trajectory.json"),
        ],
        task=TASK,
        lines=two_tool_turns("bash", "command", last=done),
        environment={
            "OPENAI_API_KEY": "$KEY",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
    )
    check_worked(tmp_path, outcome)
    assert json.loads((tmp_path / "trajectory.json").read_text())["info"]["exit_status"] == "Submitted"
