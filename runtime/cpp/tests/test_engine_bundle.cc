// Loading and translating with a bundle of engines, through the C++ interface.

#include <string>
#include <vector>

#include "check.h"
#include "engine_bundle.h"
#include "fake_tensorrt.h"
#include "gpu_fixture.h"
#include "translate_trt/translate_trt.hpp"

namespace translate_trt::runtime {

namespace {

void test_a_bundle_of_engines_translates() {
  const GpuFixture fixture;
  switch_tensorrt_on();
  const EngineBundle bundle(
      {"tensorrt-fp32",
       "tensorrt",
       tracing_shape(),
       {{"encoder", "encoder"}, {"step", "step"}},
       {{"encoder", engine_record_json()}, {"step", engine_record_json(kTracedStep)}}});
  translate_trt::LoadOptions load;
  load.target = "tensorrt-fp32";
  load.device = "cuda:1";
  load.workers = 2;
  load.check_hashes = false;
  {
    const translate_trt::Translator translator(bundle.path(), load);
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
  CHECK(fixture.cuda.calls["cuGraphLaunch"] > 0);
}

}  // namespace

void test_engine_bundle() { test_a_bundle_of_engines_translates(); }

}  // namespace translate_trt::runtime
