// Alternatives after a forced prefix: rule 12 of docs/beam-search.md (runtime/alternatives.py).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/results.h"
#include "core/sentence.h"

namespace translate_trt::runtime {

// Converts a sentence with alternatives to the search of one step after its prefix, whose n best
// hypotheses end in the most likely tokens. beams: fixed beam size of the target, if it has one.
Sentence expansion(Sentence sentence, std::optional<std::int64_t> beams);

// The sentences that complete the tokens which an expansion has found, most likely first; at least
// one, and at most as many as there are alternatives.
std::vector<Sentence> completions(const Sentence& expanded, const std::vector<Hypothesis>& found);

// The best completion of an alternative, by the score of its free tokens; the hypotheses of other
// sentences do not change.
std::vector<Hypothesis> best_completion(const Sentence& sentence, std::vector<Hypothesis> found);

}  // namespace translate_trt::runtime
