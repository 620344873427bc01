// Alignments of words between a text and its translation (runtime/text/alignment.py).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "translate_trt/translate_trt.h"

namespace translate_trt::runtime {

// Tokens of a segment, with their characters in source and translation, and the attention between
// them. Tokens of different segments are not aligned.
struct AlignedSegment {
  std::vector<Span> source, target;
  std::vector<float> weights;  // [target tokens, source tokens]
};

// A text and the segments of it and its source.
struct TextAlignment {
  std::u32string target;
  std::vector<AlignedSegment> segments;
};

// Returns aligned words, by source word and target word in ascending order. Words are separated by
// white space. The weight between two words is the sum over the tokens of the source word, and the
// mean over those of the target word. threshold: smallest weight of a pair; negative: each target
// word is aligned with the source word of the largest weight.
std::vector<tt_word_pair> aligned_words(std::u32string_view source, std::u32string_view target,
                                        const std::vector<AlignedSegment>& segments,
                                        double threshold);

}  // namespace translate_trt::runtime
