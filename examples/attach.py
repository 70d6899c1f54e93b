"""Leave a stream, and continue it later from another connection."""

from specinfer import Client

with Client("127.0.0.1:50051") as client:
    with client.stream("Count from one to twenty.") as stream:
        for piece in stream:
            print(piece.text, end="")
            if len(stream.answer.token_ids) >= 10:
                break
    for piece in client.attach(stream.request_id, from_token=len(stream.answer.token_ids)):
        print(piece.text, end="")
