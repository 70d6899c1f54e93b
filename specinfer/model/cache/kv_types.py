"""Settings of caches: names and help texts, without torch."""

AUTO_KV = "auto"
"""The numeric type of the model."""
KV_TYPES = (AUTO_KV, "bf16", "q8_0")
"""q8_0: bytes with one scale per token and head."""
KV_TYPE_HELP = (
    "Storage of keys and values: q8_0 (8 bits, half the memory of bf16), bf16, or auto, the numeric type. All but the "
    "numeric type need the native executor"
)
"""Help of `--kv-type`, wherever there is one."""
KV_TOKENS_HELP = (
    "Context tokens in the KV cache of all requests; auto: three quarters of the memory that machine or container "
    "have left after loading"
)
"""Help of `--kv-tokens`."""
PREFIXES_HELP = (
    "Directory for prefixes that leave the memory, and for all at the end of the process. Needs the native executor. "
    "Empty: none"
)
"""Help of `--prefix-cache-directory`."""
PREFIX_MEGABYTES = 4096
"""Default of `--prefix-cache-megabytes`."""
PREFIX_MEGABYTES_HELP = "Maximum megabytes in the directory of prefixes; the least recently used are deleted"
"""Help of `--prefix-cache-megabytes`."""
