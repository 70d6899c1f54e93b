"""What commands print."""

from specinfer.cli.client import Answer
from specinfer.cli.show import answer_line
from specinfer.v1 import generation_pb2


def test_an_answer_says_who_won_its_steps() -> None:
    stats = generation_pb2.SpeculationStats(steps=10, drafted=30, accepted=15)
    stats.speculators.add(name="ngram", wins=3)
    stats.speculators.add(name="ssm", wins=6)
    finish = generation_pb2.FINISH_REASON_LENGTH
    answer = Answer(summary=generation_pb2.Summary(finish_reason=finish, new_tokens=25, stats=stats))
    assert answer_line(answer) == "25 tokens in 10 steps, 2.50 tokens/step, ngram won 3, ssm won 6, length"
