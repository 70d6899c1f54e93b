"""`specinfer exact` against servers that are right, wrong, unstable, or send no log-probabilities."""

import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from specinfer.cli.main import app
from specinfer.openai_api.server import ServerRefusedError
from tests.support.network.scripted_api import Answer, ApiScript, Body, scripted_api

Say = Callable[[Body, int], Body]
"""Takes a body and the number of earlier equal bodies; returns the entry of `choices` in the answer."""
WORDS = ("one", "two", "three", "four")


def choice(*words: str, gap: float = 2.0) -> Body:
    """Return an answer of these words; each alternative is less probable by `gap` nats."""
    rows = [{word: -0.5, rival: -0.5 - gap} for word, rival in zip(words, (*words[1:], "five"), strict=True)]
    logprobs = {"tokens": list(words), "token_logprobs": [-0.5] * len(words), "top_logprobs": rows}
    return {"text": " ".join(words), "logprobs": logprobs}


def in_llama_cpps_form(answer: Body) -> Body:
    old = answer["logprobs"]
    content = [
        {
            "token": token,
            "logprob": row[token],
            "top_logprobs": [{"token": t, "logprob": p} for t, p in row.items()],
        }
        for token, row in zip(old["tokens"], old["top_logprobs"], strict=True)
    ]
    return {"text": answer["text"], "logprobs": {"content": content}}


def server_of(say: Say, owner: str = "specinfer") -> ApiScript:
    """Return a server that answers completions by `say`, and refuses long ones."""

    def answer(path: str, body: Body, before: int) -> Answer:
        assert path == "/v1/completions"
        if body["max_tokens"] > 1000:
            return 400, {}, {"error": {"message": "max_tokens: at most 1000"}}
        return 200, {}, {"choices": [say(body, before)]}

    return ApiScript(answer, owner)


def run(script: ApiScript, *options: str) -> tuple[int, str]:
    """Run `specinfer exact`; return exit code and output."""
    with scripted_api(script) as url:
        done = CliRunner().invoke(app, ["exact", url, *options])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def honest(body: Body, before: int) -> Body:
    return choice(*WORDS)


def wrong_when(changes: Callable[[Body], bool], gap: float = 2.0) -> Say:
    """Answer "four" instead of "three" if speculation is on and `changes` is true for the body."""

    def say(body: Body, before: int) -> Body:
        wrong = "speculation" not in body and changes(body)
        return choice("one", "two", "four" if wrong else "three", "four", gap=gap)

    return say


def test_an_honest_server_passes_and_is_asked_with_and_without_speculation() -> None:
    script = server_of(honest)
    code, text = run(script, "--max-tokens", "4", "--concurrency", "4")
    assert code == 0
    assert (
        "greedy: 12 of 12 answers are the same with speculation, 48 tokens; plain decoding repeats 12" in text
    )
    assert "seeded: 12 of 12 answers" in text
    off = [body for body in script.bodies if body.get("speculation") == "off"]
    on = [body for body in script.bodies if "speculation" not in body]
    assert (len(off), len(on)) == (48, 24)
    assert [body for body in on if body["temperature"] == 0] != []
    assert len({body["seed"] for body in on if body["temperature"] == 0.8}) == 12


@pytest.mark.parametrize("kind", ["greedy", "seeded"])
@pytest.mark.parametrize("form", [dict, in_llama_cpps_form])
def test_a_wrong_answer_to_one_prompt_is_found(kind: str, form: Callable[[Body], Body]) -> None:
    lie = wrong_when(
        lambda body: "bicycle" in body["prompt"] and (body["temperature"] == 0) == (kind == "greedy")
    )
    code, text = run(server_of(lambda body, before: form(lie(body, before))))
    assert code == 1
    assert f"{kind}: 11 of 12 answers are the same" in text
    wrong = "prompt 1, token 3: plain 'three', with speculation 'four', 2.000 nats less probable: differs"
    assert wrong in text


def test_ties_within_the_tolerance_pass() -> None:
    script = server_of(wrong_when(lambda body: True, gap=0.01))
    assert run(script, "--tie", "0.02")[0] == 0
    assert run(script, "--tie", "0.001")[0] == 1


@pytest.mark.parametrize("gap", [-1.5, float("nan")])
def test_a_token_more_probable_than_that_of_plain_decoding_is_no_tie(gap: float) -> None:
    """Seeded plain decoding chose a token that is less probable than that of speculation."""
    code, text = run(server_of(wrong_when(lambda body: body["temperature"] > 0, gap=gap)), "--tie", "0.02")
    assert code == 1
    assert "differs" in text
    assert ("1.500 nats more probable" in text) == (gap < 0)


def test_another_text_of_the_same_tokens_differs() -> None:
    def say(body: Body, before: int) -> Body:
        return {**choice(*WORDS), "text": "one two" if "speculation" in body else "one too"}

    code, text = run(server_of(say))
    assert code == 1
    assert "character 6: plain 'wo', with speculation 'oo': differs" in text


@pytest.mark.parametrize(("text", "words"), [("", "all answers are empty"), (None, "not a completion")])
def test_answers_without_text_prove_nothing(text: str | None, words: str) -> None:
    with pytest.raises(ServerRefusedError, match=words):
        run(server_of(lambda body, before: {"text": text}))


def test_control_characters_of_a_server_do_not_reach_the_terminal() -> None:
    script = ApiScript(lambda path, body, before: (500, {}, "\x1b[31m\nred"))
    with pytest.raises(ServerRefusedError, match=r"status 500:  \[31m red"):
        run(script)


def test_differences_between_plain_answers_are_not_blamed_on_speculation() -> None:
    def drifting(body: Body, before: int) -> Body:
        return choice("one", "two", "four" if "speculation" not in body or before % 2 else "three", "four")

    code, text = run(server_of(drifting))
    assert code == 3, "nothing is proved"
    assert "greedy: 0 of 12 answers are the same" in text
    assert "plain decoding repeats 0 of them" in text


def test_a_difference_before_plain_decodings_own_one_is_found() -> None:
    def say(body: Body, before: int) -> Body:
        if "speculation" not in body:
            return choice("two", "two", "three", "four")
        return choice("one", "two", "three", "five" if before % 2 else "four")

    assert run(server_of(say))[0] == 1


def test_a_shorter_answer_differs() -> None:
    code, text = run(server_of(lambda body, before: choice(*WORDS[: 4 if "speculation" in body else 3])))
    assert code == 1
    assert "token 4: plain 'four', with speculation ''" in text


def test_without_logprobs_text_is_compared() -> None:
    def say(body: Body, before: int) -> Body:
        return {"text": "one two" if "speculation" in body else "one too"}

    code, text = run(server_of(say))
    assert code == 1
    assert "character 6: plain 'wo', with speculation 'oo': differs" in text


def test_two_servers_are_compared() -> None:
    plain = server_of(honest, owner="vllm")
    with scripted_api(plain) as url:
        code, _ = run(
            server_of(wrong_when(lambda body: True), owner="vllm"), "--against", url, "--temperature", "0"
        )
    assert code == 1
    assert len(plain.bodies) == 24


def test_a_server_with_an_unknown_switch_needs_off_or_against() -> None:
    with pytest.raises(Exception, match="--off = None:"):
        run(server_of(honest, owner="vllm"))
    script = server_of(honest, owner="vllm")
    assert run(script, "--off", '{"spec": {"k": 0}}')[0] == 0
    assert sum("spec" in body for body in script.bodies) == 48


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--off", "[1]"], "must be a JSON object"),
        (["--off", "{"], "--off = '{':"),
        (["--max-tokens", "0"], "--max-tokens = 0"),
        (["--max-tokens", "2000"], "status 400: .*at most 1000"),
        (["--against", "ftp://x"], "base_url = 'ftp://x'"),
    ],
)
def test_bad_input_is_named(options: list[str], words: str) -> None:
    with pytest.raises(Exception, match=words):
        run(server_of(honest), *options)


def test_json_has_every_answer() -> None:
    code, text = run(
        server_of(wrong_when(lambda body: "bicycle" in body["prompt"])), "--json", "--temperature", "0"
    )
    rows = json.loads(text)
    assert code == 1
    assert [row["wrong"] for row in rows] == [True] + [False] * 11
    difference = {"position": 2, "plain": "three", "other": "four", "gap": 2.0, "unit": "token"}
    assert rows[0]["difference"] == difference
