"""Fields without effect: neutral values are accepted, other values are refused."""

import json
from typing import Any

import pytest

from http_svc.body.bodies import ChatBody, CompletionBody
from tests.docs.neutral import accepted


@pytest.mark.parametrize("model", [ChatBody, CompletionBody])
def test_neutral_values_are_taken_and_no_others(model: Any) -> None:
    good: dict[str, Any] = {"model": "m", "prompt": "x"}
    if model is ChatBody:
        good = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    for name, value in accepted(model).items():
        neutral = json.loads(f"[{value.replace('`', '')}]") if value[0] == "`" else []
        for neutral_value in [None, *neutral]:
            assert getattr(model.model_validate({**good, name: neutral_value}), name) is None
        for other in (["nobody means this"], -3, True if 1 in neutral else 1.5):
            if value == "any value":
                assert getattr(model.model_validate({**good, name: other}), name) is None
            elif other not in neutral:
                with pytest.raises(ValueError, match="not supported"):
                    model.model_validate({**good, name: other})
