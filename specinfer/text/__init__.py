"""Convert between tokens and text: tokenizers, chat templates, constraints."""
