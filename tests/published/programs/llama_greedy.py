"""Greedy texts of llama-cpp-python: `llama_greedy.py FILE.gguf TOKENS`, prompts as a JSON list on standard input.

Prints a JSON list: of each prompt its tokens and those of its continuation, which no end stops.
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
