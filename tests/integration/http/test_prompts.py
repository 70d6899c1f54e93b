"""Prompts over HTTP: continued messages, tokenization and cached tokens."""

from typing import Any

from tests.support.network.http_service import CHAT, COMPLETIONS, error_of, http_service
from tests.support.system import running_system

TURNS: list[dict[str, Any]] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": " Hel "}]
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 8, "temperature": 0}
ON = {"messages": TURNS, "continue_final_message": True}
TOOL = {"type": "function", "function": {"name": "f"}}


async def test_an_answer_continues_the_last_message(redis_url: str) -> None:
    """The template writes `a: Hel ;` for an answer: the model continues before the semicolon."""
    async with running_system(redis_url) as system, http_service(system.address) as http:

        async def text(**fields: Any) -> str:
            path = COMPLETIONS if "prompt" in fields else CHAT
            (choice,) = (await http.plain.post(path, json=ASKED | fields)).json()["choices"]
            text: str = choice["text"] if "prompt" in fields else choice["message"]["content"]
            return text

        ends = {
            "u:hi;a: Hel ": ON,
            "u:hi;a: Hel ;": {"messages": TURNS, "add_generation_prompt": False},
            "u:hi;a: Hel ;a:": {"messages": TURNS, "add_generation_prompt": True},
        }
        for prompt, fields in ends.items():
            assert await text(**fields) == await text(prompt=prompt), prompt
        assert len({await text(**fields) for fields in ends.values()}) == 3

        for fields, param in (
            (ON | {"messages": TURNS[:1]}, "continue_final_message"),
            (ON | {"messages": [*TURNS, TURNS[1] | {"content": " "}]}, "continue_final_message"),
            (ON | {"add_generation_prompt": True}, "continue_final_message"),
        ):
            reply = await http.plain.post(CHAT, json=ASKED | fields)
            assert (reply.status_code, error_of(reply)["param"]) == (400, param)


async def test_tokens_of_texts_and_conversations(redis_url: str) -> None:
    async with running_system(redis_url) as system, http_service(system.address) as http:

        async def tokens(**fields: Any) -> list[int]:
            reply = (await http.plain.post("/tokenize", json={"model": "tiny", **fields})).json()
            assert (reply["count"], reply["max_model_len"]) == (len(reply["tokens"]), 512)
            tokens: list[int] = reply["tokens"]
            return tokens

        assert await tokens(prompt="ab") == [67, 68]
        assert await tokens(prompt="ab", add_special_tokens=False) == [67, 68]
        whole = await tokens(messages=TURNS)
        text = await http.plain.post("/detokenize", json={"model": "tiny", "tokens": [*whole, 1]})
        assert text.json() == {"prompt": "u:hi;a: Hel ;a:<bos>"}
        assert await tokens(**ON) == whole[: len("u:hi;a: Hel ")]
        requested = {"messages": TURNS, "tools": [TOOL]}
        used = (await http.plain.post(CHAT, json=ASKED | requested | {"max_tokens": 1})).json()["usage"]
        assert len(await tokens(**requested)) == used["prompt_tokens"] > len(whole)

        for path, fields, param in (
            ("/tokenize", {}, "prompt"),
            ("/tokenize", {"prompt": "a", "messages": TURNS}, "prompt"),
            ("/tokenize", {"messages": TURNS, "add_special_tokens": True}, "add_special_tokens"),
            ("/tokenize", {"prompt": "a" * 20_000}, "prompt"),
            ("/tokenize", {"prompt": "a", "temperature": 1}, "temperature"),
            ("/tokenize", {"messages": TURNS[:1], "continue_final_message": True}, "continue_final_message"),
            ("/detokenize", {"tokens": [97]}, "tokens"),
            ("/detokenize", {"tokens": [1] * 513}, "tokens"),
            ("/detokenize", {}, "tokens"),
        ):
            reply = await http.plain.post(path, json=fields)
            assert (reply.status_code, error_of(reply)["param"]) == (400, param), fields
        for path, fields in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [5]})):
            reply = await http.plain.post(path, json={"model": "gpt-4", **fields})
            assert (reply.status_code, error_of(reply)["param"]) == (404, "model")


async def test_usage_counts_cached_tokens_of_prompts(redis_url: str) -> None:
    """Cached are whole blocks of 16 tokens without the last token, once for all choices."""
    prompt = "ab" * 20
    async with running_system(redis_url) as system, http_service(system.address) as http:

        async def usage(path: str, **fields: Any) -> dict[str, Any]:
            reply: dict[str, Any] = (await http.plain.post(path, json={"model": "tiny", **fields})).json()[
                "usage"
            ]
            return reply

        first = await usage(COMPLETIONS, prompt=prompt, max_tokens=3)
        again = await usage(COMPLETIONS, prompt=[prompt, prompt[:16], prompt[:17]], n=2, max_tokens=3)
        other = await usage("/v1/responses", input=prompt, max_output_tokens=3)
        same = await usage("/v1/responses", input=prompt, max_output_tokens=3)
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert (again["prompt_tokens"], again["prompt_tokens_details"]) == (73, {"cached_tokens": 32 + 0 + 16})
    assert other["input_tokens_details"] == {"cached_tokens": 0}, "its template begins with other text"
    assert same["input_tokens_details"] == {"cached_tokens": 32}
