"""`examples/ray_serve.py` on a Ray of its own: the texts of two prompts, as JSON."""

import json
import sys
import urllib.request

import ray
from ray import serve

from examples.ray_serve import app

model, port = sys.argv[1], int(sys.argv[2])
ray.init(num_cpus=2, include_dashboard=False, logging_level="warning")
serve.start(http_options={"host": "127.0.0.1", "port": port})
serve.run(app({"model": model}))


def text_of(prompt: str) -> str:
    """Return the answer of the deployment."""
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/")
    asked.data = json.dumps({"prompt": prompt, "max_tokens": 16}).encode()
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return str(json.load(answer)["text"])


texts = [text_of("2 + 2"), text_of("an owl")]
serve.shutdown()
ray.shutdown()
print(json.dumps(texts))
