"""Names and help texts of the cache's settings; importable without torch."""

AUTO_KV = "auto"
"""Store keys and values in the model's numeric type."""
KV_TYPES = (AUTO_KV, "bf16", "q8_0")
"""Values of `--kv-type`; q8_0: bytes, one scale per token and head."""
KV_TYPE_HELP = (
    "Storage of keys and values: q8_0 (8 bits, half the memory of bf16), bf16, or auto (the model's numeric type). "
    "Types that differ from the model's need the native executor"
)
KV_TOKENS_HELP = (
    "Capacity of the KV cache in context tokens, for all requests; auto: three quarters of the free memory of "
    "machine or container after loading"
)
PREFIXES_HELP = (
    "Directory for cached prompt prefixes: those that the cache evicts, and all at the end of the process. Needs the "
    "native executor. Empty: prefixes are not stored"
)
PREFIX_MEGABYTES = 4096
PREFIX_MEGABYTES_HELP = (
    "Maximum megabytes in the prefix directory; the least recently used prefixes are deleted"
)
