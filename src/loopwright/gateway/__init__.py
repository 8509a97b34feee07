"""The LLM server that agents talk to: three dialects in front, one engine behind, and every token recorded between.

It knows HTTP, sessions and histories. It knows no tokenizer (that is the renderer's) and no weights (the engine's).
"""
