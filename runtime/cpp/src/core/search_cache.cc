#include "core/search_cache.h"

#include <type_traits>
#include <utility>

namespace translate_trt::runtime {

namespace {

// Memory that an entry takes beyond its key and the elements of its vectors, about: nodes of a list
// and a map, and the headers of allocations.
constexpr std::size_t kEntryBytes = 256;

template <class T>
std::enable_if_t<std::is_arithmetic_v<T> || std::is_enum_v<T>> append(std::string& key, T value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append(std::string& key, const std::string& text) {
  append(key, text.size());
  key += text;
}

template <class T>
void append(std::string& key, const std::optional<T>& value) {
  append(key, value.has_value());
  if (value) append(key, *value);
}

template <class T>
void append(std::string& key, const std::vector<T>& values) {
  append(key, values.size());
  for (const T& value : values) append(key, value);
}

std::size_t bytes_of(const Hypothesis& one) {
  return sizeof(one) + one.tokens.size() * sizeof(one.tokens[0]) +
         one.token_log_probs.size() * sizeof(one.token_log_probs[0]) +
         one.attention.size() * sizeof(one.attention[0]);
}

}  // namespace

std::string search_key(const Sentence& sentence) {
  std::string key;
  key.reserve(256 + sizeof(sentence.tokens[0]) * sentence.tokens.size());
  append(key, sentence.tokens);
  append(key, sentence.prefix);
  append(key, sentence.suppressed);
  append(key, sentence.constraints);
  append(key, sentence.completion.has_value());  // hypotheses are ordered in another way
#define TT_OPTION(type, name, value, range, demand) append(key, sentence.options.name);
#include "base/search_options.inc"
  return key;
}

std::optional<std::vector<Hypothesis>> SearchCache::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto entry = by_key_.find(key);
  if (entry == by_key_.end()) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, entry->second);
  return entry->second->found;
}

void SearchCache::put(std::string key, const std::vector<Hypothesis>& found) {
  std::size_t bytes = kEntryBytes + key.size();
  for (const Hypothesis& one : found) bytes += bytes_of(one);
  const std::lock_guard lock(mutex_);
  if (bytes > most_bytes_ || by_key_.count(key) > 0) return;
  for (; bytes_ + bytes > most_bytes_; entries_.pop_back()) {
    bytes_ -= entries_.back().bytes;
    by_key_.erase(entries_.back().key);
  }
  bytes_ += bytes;
  entries_.push_front({std::move(key), found, bytes});
  by_key_.emplace(entries_.front().key, entries_.begin());
}

}  // namespace translate_trt::runtime
