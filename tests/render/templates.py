"""Chat templates in the manner of the field: tools in Hermes' way, thoughts that are dropped, and a strict one."""

from __future__ import annotations

from loopwright.testing.tiny import CHATML

HERMES = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\nCalls go into <tool_call></tool_call>.<|im_end|>\\n' }}
{%- elif messages[0]['role'] == 'system' %}
{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message['role'] == 'user' or (message['role'] == 'system' and not loop.first) %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- elif message['role'] == 'assistant' %}
{{- '<|im_start|>assistant\\n' + message['content'] }}
{%- for call in message['tool_calls'] or [] %}
{%- if not loop.first or message['content'] %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call['function']['name'] + '", "arguments": ' }}
{{- call['function']['arguments'] | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message['role'] == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message['content'] + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

FORGETFUL = """\
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
{%- if message['role'] == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' and message['reasoning_content'] and loop.index0 > ns.last %}
{{- '<think>\\n' + message['reasoning_content'] + '\\n</think>\\n\\n' }}
{%- endif %}
{{- message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""Drops a thought as soon as a later question is asked, as Qwen3's does."""

PREFILLED = FORGETFUL.replace(
    "{{- '<|im_start|>assistant\\n' }}{%- endif %}", "{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"
)
"""Begins every answer inside a thought."""

STRICT = (
    "{% for m in messages %}{% if m['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role ' + m['role']) }}{% endif %}{% endfor %}" + CHATML
)
"""Refuses the results of tools."""

FOREIGN = HERMES.replace("<tool_call>\\n{", "[CALL]{").replace("}\\n</tool_call>'", "}[END]'")
"""Knows tools, and writes their calls in a way that only a parser of its own could read."""
