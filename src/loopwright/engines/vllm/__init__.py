"""A vLLM server as an engine: the process that guards it, and the extension that its workers load.

vLLM lives in an environment of its own, so nothing here imports it.
"""
