"""Print the answer to a prompt, and its tokens per step."""

from specinfer import Client

with Client("127.0.0.1:50051") as client:
    answer = client.generate("Why is the sky blue?", max_new_tokens=64)
    print(answer.text)
    print(f"{answer.summary.new_tokens} tokens, {answer.stats.acceptance_length:.1f} a step")
