"""Options of requests: errors name a misspelt or bad option; signatures and help show all options."""

import inspect
import math
import pydoc
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.client import AsyncClient, Client, InvalidInputError, RequestOptions, make_request
from specinfer.client.options import checked, known_options

TAKERS = [Client.generate, Client.stream, AsyncClient.generate, AsyncClient.stream, make_request]
NAMES = sorted(get_type_hints(RequestOptions))


@pytest.fixture(name="clients")
def clients_fixture() -> Any:
    """Yield a client of each kind, for an address without a server."""
    with Client("127.0.0.1:1") as client:
        yield client, AsyncClient("127.0.0.1:1")


async def test_an_option_that_does_not_exist_is_refused_by_every_method(clients: Any) -> None:
    client, of_loop = clients
    hint = "no option 'max_tokens' of a request: did you mean max_new_tokens?"
    for take in (client.generate, client.stream, of_loop.stream, make_request):
        with pytest.raises(TypeError) as caught:
            take("hi", max_tokens=8)
        assert str(caught.value) == hint
    with pytest.raises(TypeError, match="did you mean"):
        await of_loop.generate("hi", max_tokens=8)
    with pytest.raises(TypeError, match="did you mean seed"):
        of_loop.stream(make_request("hi"), seeds=8)


@pytest.mark.parametrize(
    ("given_name", "meant"),
    [
        *(("max_tokens", "max_new_tokens"), ("temprature", "temperature"), ("n_seed", "seed")),
        *(("stop_strings", "stop"), ("presence", "presence_penalty"), ("choices", "choice")),
        *(("logitbias", "logit_bias"), ("deadline", "deadline_seconds"), ("topp", "top_p")),
    ],
)
def test_what_was_meant_is_found(given_name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"did you mean {meant}\\?"):
        make_request("hi", **{given_name: 1})  # type: ignore[misc]


def test_a_name_that_is_like_no_other_gets_the_list() -> None:
    with pytest.raises(TypeError, match=r"must be one of .*top_p.*max_new_tokens"):
        make_request("hi", zzz=1)  # type: ignore[call-arg]


WRONG: dict[str, list[Any]] = {
    "max_new_tokens": ["8", 8.0, True, None, 2**31, [8]],
    "temperature": ["hot", [1.0], True],
    "top_p": ["0.9"],
    "seed": ["1", 1.5, -1, True],
    "stop": [5, None, [5], b"x"],
    "logit_bias": [[5], {"a": 1.0}, {5: "x"}, {-1: 1.0}, "x"],
    "chat": ["yes", 1, None],
    "ignore_eos": [1, "no"],
    "speculation": ["trees", 1, None, ["tree"]],
    "request_id": [5, None, b"x"],
    "deadline_seconds": ["soon", True],
    "references": [5, [b"x"], None],
    "priority": ["high", 1.0],
    "choice": ["ab", [1], 5],
    "regex": [5],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_a_value_that_cannot_be_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=rf"^{name}.* = "):
        make_request("hi", **{name: value})  # type: ignore[misc]


_VALUES = st.one_of(
    *(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5)),
    *(st.binary(max_size=3), st.lists(st.integers() | st.text(max_size=3), max_size=3)),
    st.dictionaries(st.integers() | st.text(max_size=3), st.floats() | st.text(max_size=3), max_size=3),
)


@given(st.sampled_from(NAMES), _VALUES)
def test_every_value_is_sent_or_named(name: str, value: Any) -> None:
    """Protobuf's own errors, which name no field, must not appear."""
    message = _refusal(lambda: make_request("hi", **{name: value}))  # type: ignore[misc]
    assert message == "" or name in message


@given(
    st.one_of(_VALUES, st.lists(st.dictionaries(st.sampled_from(["role", "content"]), _VALUES), max_size=2))
)
def test_every_prompt_is_sent_or_named(prompt: Any) -> None:
    message = _refusal(lambda: make_request(prompt))
    assert message == "" or message.startswith("prompt")


def _refusal(make: Callable[[], object]) -> str:
    """Return the text of the InvalidInputError, or "" without one."""
    try:
        make()
    except InvalidInputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("taker", TAKERS)
def test_signatures_and_help_show_the_options(taker: Any) -> None:
    shown = inspect.signature(taker).parameters
    assert set(NAMES) <= shown.keys()
    assert "options" not in shown
    assert (shown["max_new_tokens"].default, shown["max_new_tokens"].annotation) == (128, int)
    assert shown["temperature"].kind is inspect.Parameter.KEYWORD_ONLY
    text = pydoc.plain(pydoc.render_doc(taker))
    for name, option in known_options().items():
        assert f"{name}: {option.about}" in text


def test_types_for_type_checkers_are_those_of_the_table() -> None:
    assert get_type_hints(RequestOptions) == {
        name: option.annotation for name, option in known_options().items()
    }


def test_the_defaults_that_are_shown_are_those_that_are_sent() -> None:
    defaults = {name: option.default for name, option in known_options().items()}
    assert make_request("hi", **checked({})) == make_request("hi") == make_request("hi", **defaults)  # type: ignore[misc]
    assert math.isclose(make_request("hi").sampling.top_p, 1.0)


def test_the_package_exports_what_its_users_name() -> None:
    import specinfer.client

    for name in specinfer._CLIENT.split():
        assert getattr(specinfer, name) is getattr(specinfer.client, name)
        assert name in dir(specinfer)
        assert name in specinfer.client.__all__
    assert issubclass(specinfer.StreamLostError, specinfer.UnavailableError)
    assert specinfer.ClientTls().wanted is False
    with pytest.raises(AttributeError):
        _ = specinfer.Nothing
