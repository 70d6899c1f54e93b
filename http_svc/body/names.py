"""Map the gateway's field names to the names in callers' bodies."""

from http_svc.body.bodies import ChatBody

_NAMES = {
    "stop_strings": "stop",
    "stop_token_ids": "stop_token_ids",
    "request_id": "Idempotency-Key",
    "constraint.choice.texts": "structured_outputs.choice",
    "constraint.json_schema": "structured_outputs.json",
    **{f"constraint.{kind}": f"structured_outputs.{kind}" for kind in ("choice", "grammar", "regex")},
}


def chat_names(body: ChatBody) -> dict[str, str]:
    """Map the gateway's field names to those of a chat body."""
    limit = "max_tokens" if body.max_tokens is not None else "max_completion_tokens"
    return {
        **_NAMES,
        "max_new_tokens": limit,
        **({} if body.structured_outputs else {"constraint.json_schema": _schema_name(body)}),
        **({"constraint.grammar": "tools"} if body.callable else {}),
        "constraint": _form_name(body),
        "chat.tools": "tools",
        "chat.variables": "chat_template_kwargs",
        "chat.end": "continue_final_message" if body.continue_final_message else "add_generation_prompt",
        **dict.fromkeys(("chat.messages", "chat", "prompt"), "messages"),
    }


def _form_name(body: ChatBody) -> str:
    """Return the name of the field that constrains the text."""
    return "tools" if body.callable else text_form_name(body).partition(".")[0]


def text_form_name(body: ChatBody) -> str:
    """Return the field with the form of answers without calls."""
    asked = body.structured_outputs
    if asked is None:
        return _schema_name(body)
    given = [
        name for name in ("json_schema", "regex", "choice", "grammar") if getattr(asked, name) is not None
    ]
    return f"structured_outputs.{'json' if given[:1] == ['json_schema'] else ''.join(given) or 'json_object'}"


def completion_names() -> dict[str, str]:
    """Map the gateway's field names to those of a completion body."""
    names = {
        "max_new_tokens": "max_tokens",
        "text": "prompt",
        "tokens.ids": "prompt",
        "infill.files": "input_extra",
        "infill": "suffix",
        "top_logprobs": "logprobs",
    }
    return {**_NAMES, **names}


def tokenize_names() -> dict[str, str]:
    """Map the gateway's field names to those of a `/tokenize` body."""
    turns = dict.fromkeys(("chat.messages", "chat"), "messages")
    return {
        "text": "prompt",
        "chat.tools": "tools",
        "chat.variables": "chat_template_kwargs",
        "chat.end": "continue_final_message",
        **turns,
    }


def _schema_name(body: ChatBody) -> str:
    form = body.response_format
    nested = form is None or form.json_schema is not None
    return "response_format.json_schema.schema" if nested else "response_format.schema"
