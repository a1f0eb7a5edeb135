"""Attention over sinks and a window, token by token, as Triton kernels: for any engine with a paged KV cache."""
