"""transformers' `generate`: one batch of equally long prompts, so that it pads nothing, with torch's fused attention.

It samples at temperature 1, without top-k, which would sort the vocabulary, and without a stop token.
"""

from __future__ import annotations

from typing import Any

from benchmarks.workers.port import Port, Stopwatch


def main(port: Port) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    spec = port.spec
    torch.set_num_threads(spec["threads"])
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32, attn_implementation="sdpa").eval()
    model.generation_config.eos_token_id = None
    prompts = torch.tensor(spec["prompts"])
    port.ready("torch", "transformers")
    for watch in port.rounds():
        _generate(model, prompts, spec["samples"], spec["new_tokens"])
        taken = watch.stop()
        first = Stopwatch()
        _generate(model, prompts, spec["samples"], 1)
        port.answer(taken, first_token_seconds=first.stop()["seconds"])


def _generate(model: Any, prompts: Any, samples: int, new_tokens: int) -> None:
    output = model.generate(
        input_ids=prompts,
        attention_mask=prompts.new_ones(prompts.shape),
        do_sample=True,
        num_return_sequences=samples,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=new_tokens,
        pad_token_id=0,
    )
    if output.shape[1] != prompts.shape[1] + new_tokens:
        raise RuntimeError("an answer ended early: both sides must sample the same number of tokens")


if __name__ == "__main__":
    main(Port())
