"""Builder of TensorRT and TensorRT-RTX engines, which share an API."""
