#include "text/alignment.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "base/utf8.h"

namespace translate_trt::runtime {

namespace {

std::vector<Span> words_of(std::u32string_view text) {
  std::vector<Span> words;
  for (std::size_t begin = 0; begin < text.size();) {
    while (begin < text.size() && is_space(text[begin])) ++begin;
    std::size_t end = begin;
    while (end < text.size() && !is_space(text[end])) ++end;
    if (end > begin) words.push_back({begin, end});
    begin = end;
  }
  return words;
}

// First and last word that each token belongs to. A token without a character of its own belongs to
// the word that it is in or before.
std::vector<Span> words_of_tokens(const std::vector<Span>& tokens, const std::vector<Span>& words) {
  std::vector<Span> found;
  if (words.empty()) return found;
  const auto number = [&](auto position) {
    return static_cast<std::size_t>(position - words.begin());
  };
  for (const auto& [begin, end] : tokens) {
    const auto after =
        std::upper_bound(words.begin(), words.end(), begin,
                         [](std::size_t place, const Span& word) { return place < word.second; });
    const auto beyond =
        std::lower_bound(words.begin(), words.end(), end,
                         [](const Span& word, std::size_t place) { return word.first < place; });
    const std::size_t first = std::min(number(after), words.size() - 1);
    found.push_back({first, std::max(number(beyond), first + 1) - 1});
  }
  return found;
}

// First and last word of all tokens, of which there is at least one.
Span range_of(const std::vector<Span>& words) {
  Span range = words.front();
  for (const auto& [first, last] : words) {
    range = {std::min(range.first, first), std::max(range.second, last)};
  }
  return range;
}

float share_of(const Span& words) {
  return 1.0F / static_cast<float>(words.second + 1 - words.first);
}

}  // namespace

std::vector<tt_word_pair> aligned_words(std::u32string_view source, std::u32string_view target,
                                        const std::vector<AlignedSegment>& segments,
                                        double threshold) {
  const std::vector<Span> source_words = words_of(source), target_words = words_of(target);
  std::set<std::pair<std::size_t, std::size_t>> pairs;        // of source word and target word
  std::map<std::size_t, std::pair<float, std::size_t>> best;  // weight and source word, by target
  for (const AlignedSegment& segment : segments) {
    const auto columns = words_of_tokens(segment.source, source_words);
    const auto rows = words_of_tokens(segment.target, target_words);
    if (columns.empty() || rows.empty()) continue;
    const Span from = range_of(columns), to = range_of(rows);
    const std::size_t width = from.second + 1 - from.first, height = to.second + 1 - to.first;
    std::vector<float> sums(height * width), totals(height);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const float row_share = share_of(rows[row]);
      for (auto word = rows[row].first; word <= rows[row].second; ++word) {
        totals[word - to.first] += row_share;
        float* sum = sums.data() + (word - to.first) * width;
        for (std::size_t column = 0; column < columns.size(); ++column) {
          const float weight = segment.weights[row * columns.size() + column] * row_share *
                               share_of(columns[column]);
          for (auto i = columns[column].first; i <= columns[column].second; ++i) {
            sum[i - from.first] += weight;
          }
        }
      }
    }
    for (std::size_t row = 0; row < height; ++row) {
      const float total = std::max(totals[row], std::numeric_limits<float>::min());
      float* weights = sums.data() + row * width;
      std::transform(weights, weights + width, weights, [&](float sum) { return sum / total; });
      const std::size_t word = to.first + row;
      if (threshold >= 0) {
        for (std::size_t column = 0; column < width; ++column) {
          const bool aligned = weights[column] >= threshold && weights[column] > 0;
          if (aligned) pairs.insert({from.first + column, word});
        }
        continue;
      }
      const float* most = std::max_element(weights, weights + width);
      // Two segments may share a word of the target: the larger weight decides.
      auto& known = best[word];
      if (*most > known.first) {
        known = {*most, from.first + static_cast<std::size_t>(most - weights)};
      }
    }
  }
  for (const auto& [word, found] : best) {
    if (found.first > 0) pairs.insert({found.second, word});
  }
  std::vector<tt_word_pair> sorted;
  for (const auto& [source_word, word] : pairs) {
    sorted.push_back({static_cast<std::uint32_t>(source_word), static_cast<std::uint32_t>(word)});
  }
  return sorted;
}

}  // namespace translate_trt::runtime
