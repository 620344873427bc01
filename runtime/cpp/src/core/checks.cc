#include "core/checks.h"

#include <algorithm>
#include <tuple>

#include "base/errors.h"
#include "base/utf8.h"

namespace translate_trt::runtime {

namespace {

// Checks that suppressed tokens are in the vocabulary and not the end symbol.
void check_sequences(const ModelDescription& model, const SearchOptions& options) {
  if (!options.suppress_sequences) return;
  for (const auto& sequence : read_sequences(*options.suppress_sequences)) {
    for (const std::int64_t token : sequence) {
      if (token >= model.vocabulary_size) {
        throw option_error("suppress_sequences has token " + std::to_string(token) +
                           ", outside the vocabulary of " + std::to_string(model.vocabulary_size) +
                           " pieces.");
      }
      if (token == model.end_token) {
        throw option_error(
            "suppress_sequences has the end symbol, which every translation needs; set min_length "
            "for longer translations.");
      }
    }
  }
}

}  // namespace

std::int64_t longest_text(const Manifest& manifest) {
  return manifest.limits.max_source_length - 1 - manifest.prompt.source_length();
}

void check_attention(const TargetEntry& target) {
  if (target.contract.attention()) return;
  throw option_error(
      "alignments, which markup needs as well, are made from cross-attention, which this bundle's "
      "step graph does not return; export it again with --attention.");
}

void check_options(const Manifest& manifest, const TargetEntry& target,
                   const SearchOptions& options) {
  const Limits& limits = manifest.limits;
  manifest.prompt.check(options, manifest.source_language, manifest.target_language);
  if (options.return_attention && !target.contract.attention()) {
    throw option_error(
        "return_attention: this bundle's step graph does not return attention; export it again "
        "with --attention.");
  }
  if (options.changing_option() != nullptr && !target.contract.marks()) {
    throw option_error(std::string(options.changing_option()) + ": the step graph of " +
                       target.name +
                       " can neither mark nor draw tokens. Export the bundle again with "
                       "--all-options, or for an onnx target.");
  }
  if (options.sampling_top_k == 0 && target.contract.shortlist) {
    throw option_error("sampling_top_k is 0, the whole vocabulary, to which the shortlist of " +
                       target.name +
                       " does not give access; use another target, or set sampling_top_k to " +
                       std::to_string(kMaxTopK) + " at most.");
  }
  check_sequences(manifest.model, options);
  if (options.max_length && *options.max_length > limits.max_target_length) {
    throw option_error("max_length " + std::to_string(*options.max_length) + " is more than the " +
                       std::to_string(limits.max_target_length) +
                       " tokens this bundle was exported for; export it with a larger "
                       "--max-target-length.");
  }
  if (!options.max_length &&
      options.max_extra_length > limits.max_target_length - limits.max_source_length) {
    throw option_error(
        "max_extra_length " + std::to_string(options.max_extra_length) +
        ": with sources of up to " + std::to_string(limits.max_source_length) +
        " tokens, that is more than the " + std::to_string(limits.max_target_length) +
        " tokens this bundle was exported for; export it with a larger --max-target-length.");
  }
  if (options.min_length > limits.max_target_length) {
    throw option_error("min_length " + std::to_string(options.min_length) + " is more than the " +
                       std::to_string(limits.max_target_length) +
                       " tokens this bundle was exported for; export it with a larger "
                       "--max-target-length.");
  }
  const auto beams = target.contract.beams();
  const std::string beam_size = "beam_size " + std::to_string(options.beam_size);
  if (beams && options.beam_size != *beams) {
    throw option_error(beam_size + ": " + target.name + " was made for " + std::to_string(*beams) +
                       " beams; ask for that, or export with --beam-size " +
                       std::to_string(options.beam_size) + ".");
  }
  const std::int64_t choices = target.contract.choices(manifest.model.vocabulary_size);
  if (options.beam_size > max_beams(choices)) {
    throw option_error(beam_size + " is too large for a " +
                       (target.contract.shortlist ? "shortlist" : "vocabulary") + " of " +
                       std::to_string(choices) + " pieces; at most " +
                       std::to_string(max_beams(choices)) + ".");
  }
  const std::int64_t most = beams.value_or(max_beams(choices));
  if (options.alternatives > most) {
    throw option_error("alternatives is " + std::to_string(options.alternatives) + "; " +
                       target.name + " finds at most " + std::to_string(most) + ".");
  }
}

void check_tokens(const Manifest& manifest, const std::string& name, const Tokens& source,
                  const std::string& target_name, const Tokens& target) {
  const ModelDescription& model = manifest.model;
  if (length(source) > longest_text(manifest)) {
    throw input_error(name + " has " + std::to_string(length(source)) +
                      " tokens; this bundle takes up to " + std::to_string(longest_text(manifest)) +
                      " and the end symbol. Split it, or export with a larger "
                      "--max-source-length.");
  }
  for (const auto& [side, list, pieces] :
       {std::tuple{&name, &source, model.input_vocabulary_size},
        std::tuple{&target_name, &target, model.vocabulary_size}}) {
    for (const std::int64_t token : *list) {
      if (token >= 0 && token < pieces) continue;
      throw input_error(*side + " has token " + std::to_string(token) +
                        ", outside the vocabulary of " + std::to_string(pieces) + " pieces.");
    }
  }
  if (std::find(target.begin(), target.end(), model.end_token) != target.end()) {
    throw input_error(target_name + " contains the end symbol; leave it out.");
  }
}

void check_constraints(const Manifest& manifest, const TargetEntry& target, const std::string& name,
                       const std::vector<Tokens>& constraints, const SearchOptions& options) {
  if (constraints.empty()) return;
  if (!target.contract.marks()) {
    throw option_error("constraints: the step graph of " + target.name +
                       " cannot enforce them. Export the bundle again with --all-options, or for "
                       "an onnx target.");
  }
  if (options.beam_size < 2) {
    throw option_error("beam_size is 1, and " + name + " has constraints; set it to at least 2.");
  }
  const std::string whose = "a constraint of " + name;
  for (const Tokens& phrase : constraints) {
    if (phrase.empty()) throw input_error(whose + " is empty; leave it out.");
    check_tokens(manifest, name, {}, whose, phrase);
  }
}

}  // namespace translate_trt::runtime
