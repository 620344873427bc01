"""Backend of the `torch` targets: their graphs as PyTorch calls, for GPUs without TensorRT.

`translate_trt.runtime.backends` imports this package on use, because PyTorch and onnx are optional
dependencies (the extra `torch`).
"""
