// What tests ask of the fake CUDA driver, a shared library that is loaded in place of libcuda.so.1.
#pragma once

#include <cstddef>

struct FakeDriverCounts {
  int blocks, pinned, streams, contexts;  // alive
  int allocations;                        // of device memory, so far
  std::size_t bytes_in, bytes_out;        // copied to and from the host, so far
};

extern "C" {

FakeDriverCounts fake_driver_counts();

// Largest allocation; 0: no limit.
void fake_driver_limit(std::size_t bytes);

}  // extern "C"
