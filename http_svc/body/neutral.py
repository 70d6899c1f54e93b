"""Fields of other servers that have no effect here."""

from typing import Annotated

from http_svc.body.fields import Ignored, NotTrue, Strict, Unsupported, only


class NeutralFields(Strict):
    """Fields that are ignored, or accept only values without effect."""

    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    cache_control: Ignored = None
    cache_salt: Ignored = None

    min_tokens: Annotated[None, only(0)] = None
    repeat_penalty: Annotated[None, only(1)] = None
    length_penalty: Annotated[None, only(1)] = None
    typical_p: Annotated[None, only(1)] = None
    priority: Annotated[None, only(0)] = None
    use_beam_search: NotTrue = None
    early_stopping: NotTrue = None
    include_stop_str_in_output: NotTrue = None
    skip_special_tokens: Annotated[None, only(True)] = None
    spaces_between_special_tokens: Annotated[None, only(True)] = None
    return_token_ids: NotTrue = None
    return_tokens_as_token_ids: NotTrue = None
    truncate_prompt_tokens: Unsupported = None
    allowed_token_ids: Unsupported = None
    prompt_logprobs: Unsupported = None
    bad_words: Annotated[None, only([])] = None
    logits_processors: Annotated[None, only([])] = None
