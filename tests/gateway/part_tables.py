"""An example of every kind of item, block and part that the three APIs define for a request, and what becomes of it."""

from __future__ import annotations

from typing import Any

MARK = "the-mark"
PNG = {"type": "base64", "media_type": "image/png", "data": "aaaa"}
DATA = "data:image/png;base64,aaaa"
READ, OMITTED, REFUSED = "read", "omitted", "refused"

TEXT = {"type": "text", "text": MARK}
SEARCH = {"type": "search_result", "title": "A title", "source": "https://a.example", "content": [TEXT]}
PLAIN = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": MARK}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aaaa"}}

BLOCKS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": (READ, TEXT),
    "image": (REFUSED, {"type": "image", "source": PNG}),
    "document": (READ, PLAIN),
    "search_result": (READ, SEARCH),
    "thinking": (READ, {"type": "thinking", "thinking": MARK, "signature": "s"}),
    "redacted_thinking": (OMITTED, {"type": "redacted_thinking", "data": "aaaa"}),
    "tool_use": (READ, {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": MARK}}),
    "tool_result": (READ, {"type": "tool_result", "tool_use_id": "c1", "content": MARK}),
    "server_tool_use": (READ, {"type": "server_tool_use", "id": "c1", "name": "web_search", "input": {"q": MARK}}),
    "web_search_tool_result": (
        READ,
        {
            "type": "web_search_tool_result",
            "tool_use_id": "c1",
            "content": [{"type": "web_search_result", "title": MARK, "url": "u", "encrypted_content": "aaaa"}],
        },
    ),
    "web_fetch_tool_result": (
        READ,
        {
            "type": "web_fetch_tool_result",
            "tool_use_id": "c1",
            "content": {"type": "web_fetch_result", "url": "u", "content": PLAIN},
        },
    ),
    "advisor_tool_result": (
        READ,
        {"type": "advisor_tool_result", "tool_use_id": "c1", "content": {"type": "advisor_result", "text": MARK}},
    ),
    "code_execution_tool_result": (
        READ,
        {
            "type": "code_execution_tool_result",
            "tool_use_id": "c1",
            "content": {"type": "code_execution_result", "stdout": MARK, "stderr": "", "return_code": 0, "content": []},
        },
    ),
    "bash_code_execution_tool_result": (
        READ,
        {
            "type": "bash_code_execution_tool_result",
            "tool_use_id": "c1",
            "content": {"type": "bash_code_execution_result", "stdout": MARK, "stderr": "", "return_code": 0},
        },
    ),
    "text_editor_code_execution_tool_result": (
        READ,
        {
            "type": "text_editor_code_execution_tool_result",
            "tool_use_id": "c1",
            "content": {"type": "text_editor_code_execution_view_result", "content": MARK, "file_type": "text"},
        },
    ),
    "tool_search_tool_result": (
        READ,
        {
            "type": "tool_search_tool_result",
            "tool_use_id": "c1",
            "content": {
                "type": "tool_search_tool_search_result",
                "tool_references": [{"type": "tool_reference", "tool_name": MARK}],
            },
        },
    ),
    "mcp_tool_use": (READ, {"type": "mcp_tool_use", "id": "c1", "name": "f", "server_name": "s", "input": {"a": MARK}}),
    "mcp_tool_result": (READ, {"type": "mcp_tool_result", "tool_use_id": "c1", "content": [TEXT]}),
    "container_upload": (OMITTED, {"type": "container_upload", "file_id": "f1"}),
    "compaction": (READ, {"type": "compaction", "content": MARK}),
    "tool_addition": (OMITTED, {"type": "tool_addition", "tool": {"type": "tool_reference", "tool_name": "f"}}),
    "tool_removal": (OMITTED, {"type": "tool_removal", "tool": {"type": "tool_reference", "tool_name": "f"}}),
    "mcp_tool_listing": (OMITTED, {"type": "mcp_tool_listing", "mcp_server_name": "s", "tools": []}),
    "fallback": (OMITTED, {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}),
}
OF_ASSISTANTS = {"thinking", "redacted_thinking", "tool_use", "compaction", "fallback", "mcp_tool_listing"} | {
    kind for kind in BLOCKS if kind.startswith(("server_", "mcp_tool_")) or kind.endswith("_tool_result")
}
"""What stands in an assistant's message; all else is a user's."""

IN_RESULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": (READ, TEXT),
    "image": (OMITTED, {"type": "image", "source": PNG}),
    "search_result": (READ, SEARCH),
    "document": (OMITTED, PDF),
    "tool_reference": (READ, {"type": "tool_reference", "tool_name": MARK}),
    "browser_state": (
        READ,
        {"type": "browser_state", "tabs": [{"id": "1", "title": MARK, "url": "u", "active": True}]},
    ),
}

SHELL = {"type": "exec", "command": ["echo", MARK], "env": {}}
ITEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "message": (READ, {"type": "message", "role": "user", "content": MARK}),
    "file_search_call": (
        READ,
        {"type": "file_search_call", "id": "i", "queries": ["q"], "status": "completed", "results": [{"text": MARK}]},
    ),
    "computer_call": (
        READ,
        {"type": "computer_call", "id": "i", "call_id": "c1", "action": {"type": "type", "text": MARK}},
    ),
    "computer_call_output": (
        OMITTED,
        {
            "type": "computer_call_output",
            "call_id": "c1",
            "output": {"type": "computer_screenshot", "image_url": DATA},
        },
    ),
    "web_search_call": (
        READ,
        {"type": "web_search_call", "id": "i", "status": "completed", "action": {"type": "search", "query": MARK}},
    ),
    "function_call": (READ, {"type": "function_call", "call_id": "c1", "name": "f", "arguments": f'{{"a": "{MARK}"}}'}),
    "function_call_output": (READ, {"type": "function_call_output", "call_id": "c1", "output": MARK}),
    "tool_search_call": (READ, {"type": "tool_search_call", "call_id": "c1", "arguments": {"query": MARK}}),
    "tool_search_output": (
        READ,
        {"type": "tool_search_output", "call_id": "c1", "tools": [{"type": "function", "name": MARK}]},
    ),
    "additional_tools": (OMITTED, {"type": "additional_tools", "role": "developer", "tools": []}),
    "configuration_update": (OMITTED, {"type": "configuration_update", "reasoning": {"effort": "low"}}),
    "reasoning": (READ, {"type": "reasoning", "id": "i", "summary": [{"type": "summary_text", "text": MARK}]}),
    "compaction": (REFUSED, {"type": "compaction", "encrypted_content": "aaaa"}),
    "image_generation_call": (
        OMITTED,
        {"type": "image_generation_call", "id": "i", "status": "completed", "result": "aaaa"},
    ),
    "code_interpreter_call": (
        READ,
        {
            "type": "code_interpreter_call",
            "id": "i",
            "code": "1",
            "container_id": "c",
            "outputs": [{"type": "logs", "logs": MARK}],
        },
    ),
    "local_shell_call": (READ, {"type": "local_shell_call", "id": "i", "call_id": "c1", "action": SHELL}),
    "local_shell_call_output": (READ, {"type": "local_shell_call_output", "id": "c1", "output": MARK}),
    "shell_call": (READ, {"type": "shell_call", "call_id": "c1", "action": {"commands": [MARK]}}),
    "shell_call_output": (
        READ,
        {
            "type": "shell_call_output",
            "call_id": "c1",
            "output": [{"stdout": MARK, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
    ),
    "apply_patch_call": (
        READ,
        {
            "type": "apply_patch_call",
            "call_id": "c1",
            "operation": {"type": "delete_file", "path": MARK},
            "status": "completed",
        },
    ),
    "apply_patch_call_output": (
        READ,
        {"type": "apply_patch_call_output", "call_id": "c1", "status": "completed", "output": MARK},
    ),
    "mcp_list_tools": (OMITTED, {"type": "mcp_list_tools", "id": "i", "server_label": "s", "tools": []}),
    "mcp_approval_request": (
        OMITTED,
        {"type": "mcp_approval_request", "id": "i", "name": "f", "server_label": "s", "arguments": "{}"},
    ),
    "mcp_approval_response": (
        OMITTED,
        {"type": "mcp_approval_response", "approval_request_id": "i", "approve": True},
    ),
    "mcp_call": (
        READ,
        {"type": "mcp_call", "id": "i", "name": "f", "server_label": "s", "arguments": "{}", "output": MARK},
    ),
    "custom_tool_call": (READ, {"type": "custom_tool_call", "call_id": "c1", "name": "f", "input": MARK}),
    "custom_tool_call_output": (READ, {"type": "custom_tool_call_output", "call_id": "c1", "output": MARK}),
    "compaction_trigger": (REFUSED, {"type": "compaction_trigger"}),
    "item_reference": (REFUSED, {"type": "item_reference", "id": "msg_unknown_0"}),
    "program": (READ, {"type": "program", "id": "i", "call_id": "c1", "code": MARK, "fingerprint": "aaaa"}),
    "program_output": (READ, {"type": "program_output", "id": "i", "call_id": "c1", "result": MARK}),
}

PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": (READ, TEXT),
    "refusal": (READ, {"type": "refusal", "refusal": MARK}),
    "image_url": (REFUSED, {"type": "image_url", "image_url": {"url": DATA}}),
    "input_audio": (REFUSED, {"type": "input_audio", "input_audio": {"data": "aaaa", "format": "wav"}}),
    "file": (REFUSED, {"type": "file", "file": {"filename": "a.pdf", "file_data": "aaaa"}}),
}
INPUT_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "input_text": (READ, {"type": "input_text", "text": MARK}),
    "input_image": (REFUSED, {"type": "input_image", "image_url": DATA}),
    "input_file": (REFUSED, {"type": "input_file", "filename": "a.pdf", "file_data": "aaaa"}),
}
