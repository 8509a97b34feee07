"""The APIs that agents speak, as pure translations: a request's body to a `Call`, and answers to a body or to events.

Nothing here waits, records or samples.
"""

from loopwright.gateway.dialects.anthropic import AnthropicMessages
from loopwright.gateway.dialects.chat import ChatCompletions
from loopwright.gateway.dialects.completions import Completions
from loopwright.gateway.dialects.dialect import Dialect, Head, Stream
from loopwright.gateway.dialects.gemini import Gemini
from loopwright.gateway.dialects.responses import Responses

__all__ = ["AnthropicMessages", "ChatCompletions", "Completions", "Dialect", "Gemini", "Head", "Responses", "Stream"]
