"""Answers that are put together of parts which are generated at the same time. Not lossless."""
