"""Fields of other servers that have no effect here."""

from typing import Annotated

from http_svc.body.fields import Ignored, NotTrue, Strict, Unsupported, only


class RoutingFields(Strict):
    """Fields about caches, routing and accounting, which change no answer."""

    user: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    session_id: Ignored = None
    request_id: Ignored = None
    tags: Ignored = None
    trace: Ignored = None
    usage: Ignored = None
    provider: Ignored = None
    route: Ignored = None
    models: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    cache_control: Ignored = None
    cache_prompt: Ignored = None
    cache: Ignored = None
    id_slot: Ignored = None
    timings_per_token: Ignored = None
    return_progress: Ignored = None
    keep_alive: Ignored = None
    ttl: Ignored = None
    num_ctx: Ignored = None
    num_batch: Ignored = None
    num_gpu: Ignored = None
    num_thread: Ignored = None
    draft_model: Ignored = None
    include_obfuscation: Ignored = None
    verbosity: Ignored = None
    max_tool_calls: Ignored = None


class NeutralFields(RoutingFields):
    """Fields that are ignored, or accept only values without effect."""

    metadata: Ignored = None
    truncation: Annotated[None, only("disabled", "auto")] = None
    transforms: Annotated[None, only([])] = None
    plugins: Annotated[None, only([])] = None
    min_tokens: Annotated[None, only(0)] = None
    mirostat: Annotated[None, only(0)] = None
    dry_multiplier: Annotated[None, only(0)] = None
    xtc_probability: Annotated[None, only(0)] = None
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
