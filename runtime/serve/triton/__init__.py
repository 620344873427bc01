"""Bundles on NVIDIA's Triton Inference Server (docs/serve.md).

`repository` writes the model repository, `interface` declares the model's inputs and outputs,
`batch` converts and translates requests, and `model` runs in the server's Python backend. Only
`model` and `metrics` import Triton's modules.
"""
