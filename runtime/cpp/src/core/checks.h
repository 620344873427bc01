// Checks of options, tokens and constraints against a bundle and one of its targets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/options.h"
#include "bundle/manifest.h"
#include "text/tokenizer.h"

namespace translate_trt::runtime {

// Maximum number of tokens of a text that is not split: the source limit without the end symbol and
// the prompt.
std::int64_t longest_text(const Manifest& manifest);

// Throws an option error if the target was not compiled for an option.
void check_options(const Manifest& manifest, const TargetEntry& target,
                   const SearchOptions& options);

// Throws an option error unless the target returns what alignments are made from.
void check_attention(const TargetEntry& target);

// Throws an input error for tokens outside the vocabulary, the end symbol in the target, or a
// source that is too long. name, target_name: of source and target in errors.
void check_tokens(const Manifest& manifest, const std::string& name, const Tokens& source,
                  const std::string& target_name, const Tokens& target);

// Throws an input or option error if no translation can have these phrases. name: of the text.
void check_constraints(const Manifest& manifest, const TargetEntry& target, const std::string& name,
                       const std::vector<Tokens>& constraints, const SearchOptions& options);

}  // namespace translate_trt::runtime
