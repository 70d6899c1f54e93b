"""Answer a prompt with a GGUF file and a draft.

Run: python examples/gguf_with_draft.py MODEL.gguf DRAFT.gguf "a prompt"
"""

import sys

from specinfer import LLM, SamplingParams

model, draft, prompt = sys.argv[1:]
with LLM(model, draft=draft) as llm:
    params = SamplingParams(temperature=0, max_tokens=128)
    (answer,) = llm.chat([{"role": "user", "content": prompt}], params, use_tqdm=False)
    counts = answer.metrics.speculative_decoding
    print(answer.outputs[0].text)
    print(
        f"{len(answer.outputs[0].token_ids)} tokens in {counts.steps} steps, {counts.accepted} of them drafted"
    )
