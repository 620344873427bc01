// Keys of searches, and results of earlier ones.
#pragma once

#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/results.h"
#include "core/sentence.h"

namespace translate_trt::runtime {

// Bytes that are equal for sentences whose searches are: tokens, options, and all else that the
// hypotheses depend on. They do not depend on the rest of a batch (rule 9 of docs/beam-search.md).
std::string search_key(const Sentence& sentence);

// Hypotheses of recent searches, by key. Once they take more memory than a limit, those that were
// asked for the longest time ago go. Thread-safe.
class SearchCache {
 public:
  // bytes: limit of the memory of all entries.
  explicit SearchCache(std::size_t bytes) : most_bytes_(bytes) {}

  // The hypotheses of an equal search.
  std::optional<std::vector<Hypothesis>> find(const std::string& key);

  // Keeps the hypotheses of a search, unless they alone exceed the limit.
  void put(std::string key, const std::vector<Hypothesis>& found);

 private:
  struct Entry {
    std::string key;
    std::vector<Hypothesis> found;
    std::size_t bytes;
  };

  const std::size_t most_bytes_;
  std::mutex mutex_;  // guards the members below
  std::size_t bytes_ = 0;
  std::list<Entry> entries_;  // the last one that was asked for comes first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> by_key_;  // of `entries_`
};

}  // namespace translate_trt::runtime
