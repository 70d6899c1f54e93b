"""From a GGUF file to an answer with a draft, and to what the draft brought.

python examples/gguf_with_draft.py MODEL.gguf DRAFT.gguf "a prompt"
"""

import sys

from specinfer import LLM, SamplingParams


def main(model: str, draft: str, prompt: str) -> None:
    with LLM(model, draft=draft) as llm:
        params = SamplingParams(temperature=0, max_tokens=128)
        (answer,) = llm.chat([{"role": "user", "content": prompt}], params, use_tqdm=False)
        tokens = len(answer.outputs[0].token_ids)
        assert answer.metrics is not None
        counts = answer.metrics.speculative_decoding
        print(answer.outputs[0].text)
        print(f"{tokens} tokens in {counts.steps} steps, {counts.accepted} of them drafted")


if __name__ == "__main__":
    main(*sys.argv[1:])
