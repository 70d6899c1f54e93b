"""Checkpoints of vLLM's `speculators` library: DFlash, DSpark, P-EAGLE, MTP and EAGLE-3.

The layout is that of version 0.9.0 of the library, which writes it. `config.json` has the algorithm's own
fields, `transformer_layer_config` (the draft's layers, as `transformers` describes a model) and
`speculators_config` (the verifier, and how many tokens are drafted). Every field and every tensor is read or
refused by its name: a field that nobody here understands may change what the draft says.
"""
