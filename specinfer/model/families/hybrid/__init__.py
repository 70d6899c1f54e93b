"""Families with recurrent layers.

The projections of such a layer are called as Qwen 3.5 calls them: `linear_attn.in_proj_qkv` of what is convolved,
`in_proj_z` of gates, `conv1d`, `out_proj`. Only the compiled kernels run them; elsewhere `transformers` does.
"""
