"""Checkpoints of vLLM's `speculators` library: DFlash, DSpark, P-EAGLE, MTP, EAGLE-3.

The layout is the one of `speculators` 0.9.0. `config.json` has the algorithm's own fields, `transformer_layer_config`
(the draft's layers, described as a model of `transformers`) and `speculators_config` (the verifier, and the number of
drafted tokens). Unknown fields and tensors are refused by name, since they may change the draft's output.
"""
