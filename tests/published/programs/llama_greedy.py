"""Print greedy texts of llama-cpp-python: `llama_greedy.py FILE.gguf TOKENS`.

Standard input has a JSON list of prompts.

Output is a JSON list of (tokens of the prompt, tokens of the continuation); end tokens do not end it.
"""

import json
import sys

from llama_cpp import Llama


def main() -> None:
    llama = Llama(sys.argv[1], n_ctx=512, verbose=False)
    rows = []
    for prompt in json.load(sys.stdin):
        tokens = llama.tokenize(prompt.encode())
        llama.reset()
        generated = llama.generate(tokens, temp=0.0, repeat_penalty=1.0)
        rows.append({"prompt": tokens, "text": [next(generated) for _ in range(int(sys.argv[2]))]})
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
