// Contracts of small decoders, like those of export/contract.py.
#pragma once

#include <optional>
#include <string>

#include "bundle/contract.h"

namespace translate_trt::runtime {

// Fixed sizes of the graphs; nullopt for any size.
struct GraphForm {
  std::optional<std::int64_t> beams, slots;
  Type cache_type = Type::kFloat32;
  std::optional<ShortlistSize> shortlist;
};

struct DecoderShape {
  std::int64_t layers, heads, key_size, value_size;
  bool attention = false;
  GraphForm form = {};
  std::int64_t recurrent_size = 0;  // of the state of a recurrent layer; 0: layers have caches

  operator Contract() const {
    const std::int64_t k = form.beams.value_or(kK), capacity = form.slots.value_or(kP);
    Contract made;
    made.encoder_inputs = {{"source_ids", Type::kInt64, {kN, kS}},
                           {"source_lengths", Type::kInt64, {kN}}};
    made.encoder_outputs = {{"source_bias", Type::kFloat32, {kN, 1, 1, kS}}};
    if (form.shortlist) made.encoder_outputs.push_back({"shortlist", Type::kInt64, {kN, kW}});
    made.request = {{"forced_tokens", Type::kInt64, {kN}},
                    {"min_lengths", Type::kInt64, {kN}},
                    {"max_lengths", Type::kInt64, {kN}},
                    {"length_penalty_alpha", Type::kFloat32, {kN}},
                    {"length_penalty_beta", Type::kFloat32, {kN}},
                    {"num_hypotheses", Type::kInt64, {kN}},
                    {"early_stopping", Type::kBool, {kN}}};
    made.state = {{"tokens", Type::kInt64, {kN, k}, Initial::kStartToken},
                  {"log_probs", Type::kFloat32, {kN, k}, Initial::kFirstLives},
                  {"positions", Type::kInt64, {kN}},
                  {"done", Type::kBool, {kN}},
                  {"finished_scores", Type::kFloat32, {kN, k}, Initial::kMinusInfinity},
                  {"finished_lengths", Type::kInt64, {kN, k}},
                  {"finished_parents", Type::kInt64, {kN, k}},
                  {"finished_truncated", Type::kBool, {kN, k}}};
    made.results = {{"parents", Type::kInt64, {kN, k}}};
    const bool has_caches = recurrent_size == 0;
    if (has_caches) {
      made.state.push_back({"ancestry", Type::kFloat32, {kN, k, kP}, Initial::kMasked});
    }
    if (has_caches && !form.slots) {
      made.state.push_back({"slots", Type::kInt64, {kN, k}, Initial::kAscending});
      made.results.push_back({"full", Type::kBool, {kN}});
    }
    if (attention) made.results.push_back({"attention", Type::kFloat32, {kN, k, kS}});
    made.shortlist = form.shortlist;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      if (!has_caches) {
        made.state.push_back(
            {"ssru_state_" + std::to_string(layer), Type::kFloat32, {kN, k, recurrent_size}});
      }
      for (const auto& [kind, size] : {std::pair{"key_", key_size}, {"value_", value_size}}) {
        const std::string name = kind + std::to_string(layer);
        made.encoder_outputs.push_back({"cross_" + name, form.cache_type, {kN, heads, kS, size}});
        if (!has_caches) continue;
        made.state.push_back(
            {"self_" + name, form.cache_type, {kN, heads, capacity, size}, Initial::kZeros, true});
      }
    }
    return made;
  }
};

}  // namespace translate_trt::runtime
