// Bundles like those of the exporter, whose graphs are fakes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "../format_version.h"
#include "engine_records.h"
#include "tracing_engines.h"

namespace translate_trt::runtime {

inline constexpr int kWords = 20;  // vocabulary size; words come last

// Encodes a field of a protocol buffer message.
inline std::string proto_field(int number, const std::string& content) {
  return std::string(1, static_cast<char>(number << 3 | 2)) + static_cast<char>(content.size()) +
         content;
}

inline std::string proto_number(int number, int value) {
  return std::string(1, static_cast<char>(number << 3)) + static_cast<char>(value);
}

// A SentencePiece model with unknown, start and end symbols and the words w3 to w19.
inline std::string word_model() {
  constexpr int kUnknown = 2, kControl = 3, kNormal = 1, kUnigram = 1;
  std::string model;
  for (int piece = 0; piece < kWords; ++piece) {
    const char* special[] = {"<unk>", "<s>", "</s>"};
    const bool is_special = piece < 3;
    const std::string text = is_special ? special[piece] : "\xe2\x96\x81w" + std::to_string(piece);
    const int type = piece == 0 ? kUnknown : is_special ? kControl : kNormal;
    model += proto_field(1, proto_field(1, text) + proto_number(3, type));
  }
  return model + proto_field(2, proto_number(3, kUnigram)) + proto_field(3, "");
}

inline Json contract_group(const Specs& specs, bool is_state) {
  const std::map<Type, const char*> types = {
      {Type::kInt64, "int64"}, {Type::kBool, "bool"}, {Type::kFloat32, "float32"}};
  const char* initials[] = {"zeros",          "start_token", "masked",
                            "minus_infinity", "first_lives", "ascending"};
  Json group = Json::object();
  for (const TensorSpec& spec : specs) {
    Json axes = Json::array();
    for (const std::int64_t axis : spec.axes) {
      if (axis < 0) {
        axes.push_back(std::string(1, static_cast<char>(-axis)));
      } else {
        axes.push_back(axis);
      }
    }
    group[spec.name] = {{"dtype", types.at(spec.type)}, {"axes", axes}};
    if (!is_state) continue;
    group[spec.name]["initial"] = initials[static_cast<int>(spec.initial)];
    group[spec.name]["in_place"] = spec.in_place;
  }
  return group;
}

struct BundleTarget {
  std::string name, backend;
  Contract contract;
  std::map<std::string, std::string> files;  // contents by role
  Json records;
};

// Writes a bundle like the exporter's, with one target.
class EngineBundle {
 public:
  explicit EngineBundle(const BundleTarget& target) {
    path_ = temporary_directory("bundle");
    const Contract& contract = target.contract;
    const Json words = file("words.model", word_model());
    Json files = Json::object();
    for (const auto& [role, content] : target.files) files[role] = file(role, content);
    Json manifest = {{"format_version", kFormatVersion},
                     {"created_by", "a test"},
                     {"weights_sha256", nullptr},
                     {"source_language", nullptr},
                     {"target_language", nullptr},
                     {"model",
                      {{"source_vocabulary_size", 0},
                       {"vocabulary_size", kWords},
                       {"pad_token", -1},
                       {"unknown_token", 0},
                       {"start_token", 1},
                       {"end_token", kTracedEnd},
                       {"source_end", true}}},
                     {"limits", {{"max_source_length", 48}, {"max_target_length", 90}}},
                     {"prompt",
                      {{"target_side", "target"},
                       {"source", Json::array()},
                       {"target", Json::array()},
                       {"source_languages", Json::object()},
                       {"target_languages", Json::object()}}},
                     {"search", {{"beam_size", 1}, {"length_penalty", 0}}},
                     {"tokenizer", {{"source", words}, {"target", words}}}};
    for (const char* name : {"encoder_layers", "decoder_layers", "heads", "key_size", "value_size",
                             "model_size", "feed_forward_size", "parameters"}) {
      manifest["model"][name] = 1;
    }
    manifest["targets"][target.name] = {
        {"backend", target.backend},
        {"precision", "fp32"},
        {"files", files},
        {"contract",
         {{"shortlist", nullptr},
          {"encoder_inputs", contract_group(contract.encoder_inputs, false)},
          {"encoder_outputs", contract_group(contract.encoder_outputs, false)},
          {"request", contract_group(contract.request, false)},
          {"state", contract_group(contract.state, true)},
          {"results", contract_group(contract.results, false)}}},
        {"engine", target.records},
        {"builder", Json::object()},
        {"parity", nullptr},
        {"calibration", nullptr}};
    std::ofstream(path_ / kManifestName) << manifest.dump();
  }

  ~EngineBundle() { std::filesystem::remove_all(path_); }

  std::string path() const { return path_.string(); }

 private:
  Json file(const std::string& name, const std::string& content) {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return {{"path", name}, {"sha256", std::string(64, '0')}, {"bytes", content.size()}};
  }

  std::filesystem::path path_;
};

}  // namespace translate_trt::runtime
