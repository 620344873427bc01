// Loading and translating with a bundle of engines, through the C++ interface.

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "../format_version.h"
#include "check.h"
#include "engine_records.h"
#include "fake_cuda_driver/fake_driver.h"
#include "fake_tensorrt.h"
#include "tracing_engines.h"
#include "translate_trt/translate_trt.hpp"

namespace translate_trt::runtime {

namespace {

constexpr int kWords = 20;  // vocabulary size; words come last

// Encodes a field of a protocol buffer message.
std::string proto_field(int number, const std::string& content) {
  return std::string(1, static_cast<char>(number << 3 | 2)) + static_cast<char>(content.size()) +
         content;
}

std::string proto_number(int number, int value) {
  return std::string(1, static_cast<char>(number << 3)) + static_cast<char>(value);
}

// A SentencePiece model with unknown, start and end symbols and the words w3 to w19.
std::string word_model() {
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

Json contract_group(const Specs& specs, bool is_state) {
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

// Writes a bundle like the exporter's, with tracing engines.
class EngineBundle {
 public:
  EngineBundle() {
    path_ = temporary_directory("bundle");
    const Contract contract = tracing_shape();
    const Json words = file("words.model", word_model());
    const Json records = {{"encoder", engine_record_json()},
                          {"step", engine_record_json(kTracedStep)}};
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
    manifest["targets"]["tensorrt-fp32"] = {
        {"backend", "tensorrt"},
        {"precision", "fp32"},
        {"files", {{"encoder", file("encoder", "encoder")}, {"step", file("step", "step")}}},
        {"contract",
         {{"shortlist", nullptr},
          {"encoder_inputs", contract_group(contract.encoder_inputs, false)},
          {"encoder_outputs", contract_group(contract.encoder_outputs, false)},
          {"request", contract_group(contract.request, false)},
          {"state", contract_group(contract.state, true)},
          {"results", contract_group(contract.results, false)}}},
        {"engine", records},
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

LoadOptions on_device(const std::string& device, int workers) {
  LoadOptions load;
  load.target = "tensorrt-fp32";
  load.device = device;
  load.workers = workers;
  load.check_hashes = false;
  return load;
}

void switch_machine_on() {
  fake_cuda() = {};
  fake_tensorrt() = {};
  fake_tensorrt().engines = {{"encoder", fake_engine(false, 4)}, {"step", fake_engine(true, 12)}};
}

void test_a_bundle_of_engines_translates() {
  switch_machine_on();
  const EngineBundle bundle;
  {
    const translate_trt::Translator translator(bundle.path(), on_device("cuda:1", 2));
    translate_trt::SearchOptions search;
    search.beam_size = 1;
    search.max_length = 9;
    std::vector<std::string> lines;
    for (int line = 0; line < 40; ++line) {
      const std::string word = "w" + std::to_string(3 + line % 17);
      std::string text = word;
      for (int i = 0; i < line % 9; ++i) text += " " + word;
      lines.push_back(text);
    }
    // The engines generate the sentence's own word up to its length.
    const auto found = translator.translate(lines, search);
    CHECK(found.size() == lines.size());
    for (std::size_t line = 0; line < found.size(); ++line) {
      const auto word = static_cast<std::int32_t>(3 + line % 17);
      const std::vector<std::int32_t>& tokens = found[line].hypotheses[0].pieces[0].tokens;
      CHECK(tokens.size() >= 8 && tokens == std::vector<std::int32_t>(tokens.size(), word));
      CHECK(found[line].text().rfind(lines[line].substr(0, lines[line].find(' ')), 0) == 0);
    }
  }
  CHECK(fake_tensorrt().runs.size() == 1 && fake_tensorrt().runs.count(1) == 1);
  CHECK(fake_cuda().calls["cuGraphLaunch"] > 0);
  CHECK(fake_cuda().left() == 0 && fake_cuda().violations.empty());
}

void test_a_bundle_of_engines_is_refused() {
  switch_machine_on();
  const EngineBundle bundle;
  const auto refused = [&](const std::string& device) -> std::string {
    try {
      translate_trt::Translator(bundle.path(), on_device(device, 1));
    } catch (const translate_trt::Error& error) {
      return std::string(tt_status_name(error.status())) + " " + error.what();
    }
    return "";
  };
  CHECK(refused("").empty());  // default: the first GPU
  CHECK(contains(refused("cpu"), "TT_BACKEND_ERROR engines run on a GPU alone"));
  CHECK(contains(refused("cuda:7"), "TT_BACKEND_ERROR there is no GPU cuda:7"));
  fake_cuda().capability_major = 9;
  CHECK(contains(refused("cuda"), "TT_BUNDLE_ERROR " + bundle.path() +
                                      ": the engines of tensorrt-fp32 were made by tensorrt "
                                      "11.0.1.29 for compute capability 8.6; this GPU is"));
  CHECK(fake_cuda().left() == 0 && fake_cuda().violations.empty());
}

}  // namespace

void test_engine_bundle() {
  test_a_bundle_of_engines_translates();
  test_a_bundle_of_engines_is_refused();
}

}  // namespace translate_trt::runtime
