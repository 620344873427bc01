"""Plans: the launches of a graph as data, which libtranslate_trt runs by the CUDA driver alone."""
