"""Checkpoints of vLLM's `speculators` library: DFlash, DSpark, P-EAGLE, MTP, EAGLE-3.

The layout is that of version 0.9.0 of the library, which writes it. `config.json` has the algorithm's own
fields, `transformer_layer_config` (the draft's layers, as `transformers` describes a model) and
`speculators_config` (the verifier, and the number of drafted tokens). Every field and every tensor is read or
refused by its name: an unknown field may change the draft's output.
"""
