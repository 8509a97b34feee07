"""The LLM server that agents talk to. It speaks three dialects, uses one engine, and records every token.

It knows HTTP, sessions and histories. It does not know tokenizers (the renderer does) or weights (the engine does).
"""
