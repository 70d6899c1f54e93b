"""Run the check of `specinfer exact`: plain decoding twice, then speculation."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from specinfer.errors import InvalidInputError
from specinfer.openai_api.comparison import Compared, first_divergence
from specinfer.openai_api.completion import SWITCHES, Completion, Question, Side
from specinfer.openai_api.server import ApiServer, ServerRefusedError

PROMPTS = (
    "The history of the bicycle began",
    "def quicksort(items):\n    ",
    "Question: What is 17 * 23?\nAnswer: Let's think step by step.",
    "Once upon a time, in a village by the sea,",
    '{"name": "Ada", "born": 1815, "known for": ["',
    "Translate to French: The weather is nice today, and we are going to the beach.\n",
    "1, 2, 4, 8, 16, 32,",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    "SELECT name, price FROM products WHERE",
    "Light is a wave and a particle. This means that",
    "Ingredients:\n- 2 eggs\n- 100 g flour\n-",
    "北京是中国的首都。",
)
"""Default prompts: beginnings of texts, of different predictability."""


def sides(
    speculating: ApiServer, against: ApiServer | None, off: dict[str, object] | None
) -> tuple[Side, Side]:
    """Return the server without speculation, and the server to check.

    Args:
        speculating: the server to check.
        against: another server, which decodes plainly; None: the same server, with `off` in each request.
        off: body fields that switch speculation off; None: from `SWITCHES`.
    """
    if against is not None:
        return Side(against, off or {}), Side(speculating)
    if off is None:
        _, owner = speculating.model()
        if owner not in SWITCHES:
            reason = f"needed: how to switch speculation off is unknown for a server of {owner or 'an unknown maker'}"
            raise InvalidInputError("--off", None, f"{reason}: give it as JSON, or --against another server")
        off = dict(SWITCHES[owner])
    return Side(speculating, off), Side(speculating)


def check(
    plain: Side,
    speculating: Side,
    questions: Sequence[Question],
    concurrency: int,
    model: str | None = None,
    done: Callable[[], None] = lambda: None,
) -> list[Compared]:
    """Return the comparison of all answers, in the order of the questions.

    Args:
        plain: server without speculation.
        speculating: server to check.
        questions: requests, each sent twice to `plain` and once to `speculating`.
        concurrency: maximum requests that run at once.
        model: model id at both servers; None: the first in each server's list.
        done: called after each answer.
    """
    rounds: list[list[Completion]] = []
    for side in (plain, plain, speculating):
        name = model or side.server.model()[0]

        def one(question: Question, side: Side = side, name: str = name) -> Completion:
            answer = side.complete(name, question)
            done()
            return answer

        with ThreadPoolExecutor(concurrency) as pool:
            rounds.append(list(pool.map(one, questions)))
    if not any(answer.text for answers in rounds for answer in answers):
        raise ServerRefusedError(
            f"{speculating.server.base_url}: all answers are empty, so nothing can be compared"
        )
    numbers = {prompt: place for place, prompt in enumerate(dict.fromkeys(q.prompt for q in questions))}
    return [
        Compared(
            "greedy" if question.temperature == 0 else "seeded",
            numbers[question.prompt],
            len(first.tokens),
            first_divergence(first, other),
            first_divergence(first, again),
        )
        for question, first, again, other in zip(questions, *rounds, strict=True)
    ]
