"""Names of the storages of keys and values, for settings; without torch."""

AUTO_KV = "auto"
"""The numeric type of the model."""
KV_TYPES = (AUTO_KV, "bf16", "q8_0")
"""q8_0: bytes with one scale per token and head."""
KV_TYPE_HELP = (
    "Storage of keys and values: q8_0 (8 bits, half the memory of bf16), bf16, or auto, the numeric type. All but the "
    "numeric type need the native executor"
)
"""Help of `--kv-type`, wherever there is one."""
