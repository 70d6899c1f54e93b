"""Families with recurrent layers.

Names of a recurrent layer's tensors are Qwen 3.5's: `linear_attn.in_proj_qkv` projects the inputs of the convolution,
`in_proj_z` the gates; `conv1d`, `out_proj`. Only the native executor and the generic one run such layers.
"""
