// Loading and translating with a bundle of engines, through the C++ interface.

#include <string>
#include <vector>

#include "check.h"
#include "engine_bundle.h"
#include "fake_cuda_driver/fake_driver.h"
#include "fake_tensorrt.h"
#include "tracing_engines.h"
#include "translate_trt/translate_trt.hpp"

namespace translate_trt::runtime {

namespace {

LoadOptions on_device(const std::string& device, int workers) {
  LoadOptions load;
  load.target = "tensorrt-fp32";
  load.device = device;
  load.workers = workers;
  load.check_hashes = false;
  return load;
}

BundleTarget tensorrt_target() {
  return {"tensorrt-fp32",
          "tensorrt",
          tracing_shape(),
          {{"encoder", "encoder"}, {"step", "step"}},
          {{"encoder", engine_record_json()}, {"step", engine_record_json(kTracedStep)}}};
}

void switch_machine_on() {
  fake_cuda() = {};
  fake_tensorrt() = {};
  fake_tensorrt().engines = {{"encoder", fake_engine(false, 4)}, {"step", fake_engine(true, 12)}};
}

void test_a_bundle_of_engines_translates() {
  switch_machine_on();
  const EngineBundle bundle(tensorrt_target());
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
  const EngineBundle bundle(tensorrt_target());
  const auto refused = [&](const std::string& device) -> std::string {
    try {
      translate_trt::Translator(bundle.path(), on_device(device, 1));
    } catch (const translate_trt::Error& error) {
      return std::string(tt_status_name(error.status())) + " " + error.what();
    }
    return "";
  };
  CHECK(refused("").empty());  // default: the first GPU
  CHECK(contains(refused("cpu"), "TT_BACKEND_ERROR this target runs on a GPU alone"));
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
