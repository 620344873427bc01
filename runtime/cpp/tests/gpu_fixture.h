// A machine with the fake CUDA driver, and searches on its tracing engines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "base/options.h"
#include "check.h"
#include "fake_cuda_driver/fake_driver.h"
#include "tracing_engines.h"

namespace translate_trt::runtime {

// A fresh machine. On destruction, checks that all objects were freed and that there were no
// violations.
struct GpuFixture {
  FakeCuda& cuda = fake_cuda();
  std::vector<std::string> messages;  // that a backend has logged

  GpuFixture() { cuda = {}; }
  ~GpuFixture() {
    for (const auto& [kind, count] : cuda.alive) {
      if (count != 0) std::cerr << count << " of " << kind << " left\n";
    }
    CHECK(cuda.left() == 0 && cuda.violations.empty());
    cuda = {};
  }
  GpuFixture(const GpuFixture&) = delete;
  GpuFixture& operator=(const GpuFixture&) = delete;
};

inline SearchOptions greedy() {
  SearchOptions options;
  options.beam_size = 1;
  return options;
}

// Sentences of equal tokens: by default, 11 in the first, 12 in the second.
inline Sources traced_sources(const std::vector<std::size_t>& sizes, std::int64_t first = 11,
                              std::int64_t most = 90) {
  static const SearchOptions options = greedy();
  Sources made;
  made.options.assign(sizes.size(), &options);
  for (const std::size_t size : sizes) {
    made.tokens.push_back(Tokens(size, first++));
    made.max_lengths.push_back(most);
  }
  return made;
}

// Runs steps until none are in flight; returns their number.
inline std::size_t advance(Batch& batch) {
  const std::size_t taken = batch.step({}).size();
  return taken + batch.drain().size();
}

// Runs steps of two sentences in a new batch.
inline void run_steps(const Backend& backend, int count) {
  const auto batch = backend.batch(greedy(), 2);
  batch->update({}, traced_sources({9, 9}));
  for (int i = 0; i < count; ++i) {
    const Tokens found = batch->step({}).back().tokens;
    CHECK(found[0] == 11 && found[1] == 12);
  }
}

// Lets sentences enter, leave and change their buckets. The engines check the source and the past
// of every row.
inline void search_in_all_buckets(Batch& batch) {
  batch.update({}, traced_sources({40, 9, 9, 9, 9, 15}));  // 6x48
  advance(batch);
  CHECK(batch.update({2, 5}, {}) == std::pair(Rows({2, 0}), Rows()));  // 3x16: narrower
  advance(batch);
  CHECK(batch.update({0}, traced_sources({9, 20, 9, 9}, 31)) ==
        std::pair(Rows({0}), Rows({1, 2, 3, 4})));  // 6x24: wider
  advance(batch);
  CHECK(batch.update({0}, traced_sources({48}, 41)) == std::pair(Rows({0}), Rows({1})));
  advance(batch);
  CHECK(batch.update({0}, {}) == std::pair(Rows({0}), Rows()));  // 1x48
  CHECK(batch.step({}).back().tokens == Tokens({16}));
}

}  // namespace translate_trt::runtime
