"""ONNX graphs to engines of TensorRT and TensorRT-RTX: one builder, as their APIs agree."""
