#include "core/confidence.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/utf8.h"
#include "bundle/fields.h"

namespace translate_trt::runtime {

namespace {

constexpr double kLeast = -30;  // log-probability below which words do not differ any more

// The positions of the tokens of each word; a token that begins with a space begins one. A space
// that is a token by itself belongs to the word after it.
std::vector<std::vector<std::size_t>> word_tokens(const Tokenizer& tokenizer,
                                                  const Tokens& tokens) {
  std::vector<std::vector<std::size_t>> groups;
  bool alone = false;  // the last group is a space
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const Tokenizer::WordStart start = tokenizer.word_start(tokens[i]);
    if (groups.empty() || (start != Tokenizer::WordStart::kNone && !alone)) groups.emplace_back();
    groups.back().push_back(i);
    alone = start == Tokenizer::WordStart::kAlone;
  }
  return groups;
}

std::string stripped(const std::string& text) {
  const std::u32string characters = decode_utf8(text);
  const auto is_text = [](char32_t one) { return !is_space(one); };
  const auto begin = std::find_if(characters.begin(), characters.end(), is_text);
  const auto end = std::find_if(characters.rbegin(), characters.rend(), is_text).base();
  return begin < end ? encode_utf8({&*begin, static_cast<std::size_t>(end - begin)}) : "";
}

}  // namespace

double Calibration::confidence(double log_prob) const {
  const double x = slope * std::max(log_prob, kLeast) + intercept;
  return 0.5 * (1 + std::tanh(0.5 * x));
}

std::optional<Calibration> read_calibration(const TargetEntry& target) {
  const Json value = Json::parse(target.calibration);
  if (value.is_null()) return std::nullopt;
  bool known = true;
  for (const char* name : {"slope", "intercept", "words", "error_before", "error_after"}) {
    const auto found = value.find(name);
    known =
        known && found != value.end() && found->is_number() && std::isfinite(found->get<double>());
  }
  if (!known || value["slope"].get<double>() <= 0) {
    throw bundle_error("the calibration of " + target.name +
                       " in the manifest is damaged; run translate-trt calibrate again.");
  }
  return Calibration{value["slope"].get<double>(), value["intercept"].get<double>()};
}

std::vector<Word> words_of(const Tokenizer& tokenizer, const std::vector<Hypothesis>& pieces,
                           const std::optional<Calibration>& calibration) {
  std::vector<Word> words;
  for (const Hypothesis& piece : pieces) {
    for (const auto& group : word_tokens(tokenizer, piece.tokens)) {
      Tokens tokens;
      double log_prob = 0;
      for (const std::size_t i : group) {
        tokens.push_back(piece.tokens[i]);
        log_prob += piece.token_log_probs[i];
      }
      std::string text = stripped(tokenizer.decode(tokens));
      if (text.empty()) continue;  // tokens of the prompt, or a space alone
      const double confidence =
          calibration ? calibration->confidence(log_prob) : std::exp(log_prob);
      words.push_back({std::move(text), log_prob, confidence});
    }
  }
  return words;
}

}  // namespace translate_trt::runtime
