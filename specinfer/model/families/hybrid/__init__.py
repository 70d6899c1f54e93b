"""Describes families with recurrent layers.

Our names of a recurrent layer's tensors are those of Qwen 3.5: `linear_attn.in_proj_qkv` projects the convolution's
inputs, `in_proj_z` the gates; `conv1d` is the convolution, `out_proj` the output projection. Only the native and
the generic executor run such layers.
"""
