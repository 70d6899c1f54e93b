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
    "Context tokens the KV cache holds over all requests; auto: three quarters of the memory that the machine or its "
    "container has left beside the weights"
)
"""Help of `--kv-tokens`."""
PREFIXES_HELP = (
    "Directory for prefixes of prompts that leave the memory, and for all when the process ends: after a restart "
    "they are read from there instead of computed. Needs the native executor. Empty: none"
)
"""Help of `--prefix-cache-directory`."""
PREFIX_MEGABYTES = 4096
"""Default of `--prefix-cache-megabytes`."""
PREFIX_MEGABYTES_HELP = "Most megabytes in the directory of prefixes; those unused for longest are deleted"
"""Help of `--prefix-cache-megabytes`."""
