"""The JSON of an answer: what a request has so far, and what is told of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from loopwright.testing.sglang.asks import GenerateAsk
from loopwright.testing.sglang.sample import TokenLogprobs
from loopwright.testing.sglang.sequence import Output, TakenFromQueue

Json = dict[str, Any]


@dataclass(slots=True)
class ToldAnswer:
    """What the frontend knows of a request. The label is that of the moment when an answer is built, not of the moment
    when its tokens were sampled."""

    ask: GenerateAsk
    tokenizer: Any
    incremental: bool
    began: float = field(default_factory=time.monotonic)
    ids: list[int] = field(default_factory=list)
    rows: list[TokenLogprobs] = field(default_factory=list)
    input_rows: list[TokenLogprobs] = field(default_factory=list)
    shown: int = 0

    def after(self, output: Output, label: str) -> Json:
        """The answer after some news. Cumulative, unless streams are incremental."""
        before = len(self.ids)
        self.ids += output.ids
        self.rows += output.rows
        self.input_rows = output.input_rows or []
        meta: Json = {
            "id": self.ask.rid,
            "finish_reason": output.finish,
            "prompt_tokens": output.prompt_tokens,
            "weight_version": label,
            "num_retractions": output.retractions,
            **self._logprobs(before if self._is_delta else 0),
            "reasoning_tokens": 0,
            "completion_tokens": len(self.ids),
            "cached_tokens": output.cached_tokens,
            "cached_tokens_details": {"device": output.cached_tokens, "host": 0} if output.cached_tokens else None,
        }
        if output.finish is not None:
            meta |= {"e2e_latency": time.monotonic() - self.began, "response_sent_to_client_ts": time.time()}
        return self._body(self.ids[before:] if self._is_delta else list(self.ids), output.finish, meta)

    def taken(self, message: TakenFromQueue, label: str) -> Json:
        """The answer to a request that was aborted in the queue: the tokens that were told, with little else."""
        meta: Json = {
            "id": message.rid,
            "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
            "weight_version": label,
            "e2e_latency": time.monotonic() - self.began,
            **self._logprobs(0),
            "completion_tokens": len(self.ids),
        }
        ids = self.ids[-1:] if self.ask.stream else list(self.ids)
        return {"text": self.tokenizer.decode(self.ids, skip_special_tokens=True), "output_ids": ids, "meta_info": meta}

    @property
    def _is_delta(self) -> bool:
        return self.ask.stream and self.incremental

    def _body(self, ids: list[int], finish: Any, meta: Json) -> Json:
        body: Json = {"text": self._text(ids, finish), "output_ids": ids, "meta_info": meta}
        return body | ({"prompt_token_ids": self.ask.ids} if self.ask.return_prompt_token_ids else {})

    def _text(self, ids: list[int], finish: Any) -> str:
        """Without the stop token or stop string."""
        sampling, matched = self.ask.sampling, (finish or {}).get("matched")
        trimmed = matched is not None and not sampling.no_stop_trim
        kept = ids[:-1] if trimmed and isinstance(matched, int) else ids
        text: str = self.tokenizer.decode(kept, skip_special_tokens=sampling.skip_special_tokens)
        return text.partition(matched)[0] if trimmed and isinstance(matched, str) else text

    def _logprobs(self, since: int) -> Json:
        if not self.ask.return_logprob:
            return {}
        rows, prompt = self.rows[since:], self.input_rows
        found: Json = {
            "input_token_logprobs": [self._told(row.token) for row in prompt],
            "output_token_logprobs": [self._told(row.token) for row in rows],
            "output_token_logprobs_length": len(self.rows),
        }
        if self.ask.top_logprobs_num > 0:
            found["input_top_logprobs"] = [row.top or None for row in prompt]
            found["output_top_logprobs"] = [row.top or None for row in rows]
        if self.ask.token_ids_logprob is not None:
            found["input_token_ids_logprobs"] = [row.chosen or None for row in prompt]
            found["output_token_ids_logprobs"] = [row.chosen or None for row in rows]
        return found

    def _told(self, triple: list[Any]) -> list[Any]:
        if not self.ask.return_text_in_logprobs:
            return triple
        return [triple[0], triple[1], self.tokenizer.decode([triple[1]])]
