"""Stream a conversation's answer, and resume it after a lost connection."""

from specinfer import Client

turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me of Athens."}]
with Client("127.0.0.1:50051") as client, client.stream(turns, temperature=0.8, seed=7) as stream:
    for piece in stream:
        print(piece.text, end="", flush=True)
    print(f"\n({stream.answer.finish_reason})")
