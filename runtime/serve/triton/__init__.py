"""A bundle behind NVIDIA's Triton Inference Server (docs/serve.md).

`repository` writes what the server reads, `interface` says once what goes in and out, `batch`
translates requests together, and `model` is what the server's Python backend runs. All but `model`
know nothing of Triton.
"""
