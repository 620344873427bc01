"""GPU kernels of fused operators, in Triton: one file for each kind of operator.

A file declares kernels and, for each operator, a function that describes its launches
(`translate_trt.runtime.gpu.launch`). The torch targets run them where Triton is installed. Nothing
here is imported elsewhere, because Triton and PyTorch are optional dependencies.
"""
