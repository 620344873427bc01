// Translates lines of standard input with arrays in host memory, and again with arrays in the
// memory of the fake CUDA driver, and compares the results. ONNX Runtime's CPU provider stands for
// the GPU's: it reads and writes the same arrays. TOLERANCE of scores is 0 where compiled kernels
// make rounding independent of the shapes of a batch.
//
//   translate_trt_device_search BUNDLE TARGET TOLERANCE < lines
//
// The exit code is 1 if a result differs.

#include <algorithm>
#include <cmath>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/host_batch.h"
#include "backends/onnxruntime_plugins.h"
#include "backends/onnxruntime_providers.h"
#include "base/options.h"
#include "base/platform.h"
#include "check.h"
#include "core/translator.h"
#include "device_graphs.h"
#include "fake_cuda_driver/fake_driver.h"

namespace translate_trt::runtime {

namespace {

constexpr int kBatchTokens = 200;
// ONNX Runtime computes the returned attention, with sums over all source positions of a batch.
constexpr double kAttentionTolerance = 1e-5;

// Compares numbers; a tolerance of 0 demands the same bits.
struct Comparison {
  double tolerance;

  bool same(double one, double other) const { return std::abs(one - other) <= tolerance; }

  template <class T>
  static bool same(const std::vector<T>& one, const std::vector<T>& other, double tolerance) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                      [=](T a, T b) { return std::abs(double{a} - double{b}) <= tolerance; });
  }

  bool same(const Hypothesis& one, const Hypothesis& other) const {
    return one.tokens == other.tokens && same(one.score, other.score) &&
           same(one.token_log_probs, other.token_log_probs, tolerance) &&
           one.truncated == other.truncated &&
           same(one.attention, other.attention, kAttentionTolerance);
  }

  bool same(const TextHypothesis& one, const TextHypothesis& other) const {
    return one.text == other.text && same(one.score, other.score) &&
           std::equal(one.pieces.begin(), one.pieces.end(), other.pieces.begin(),
                      other.pieces.end(),
                      [this](const auto& a, const auto& b) { return same(a, b); });
  }

  bool same(const Translation& one, const Translation& other) const {
    return std::equal(one.hypotheses.begin(), one.hypotheses.end(), other.hypotheses.begin(),
                      other.hypotheses.end(),
                      [this](const auto& a, const auto& b) { return same(a, b); });
  }
};

std::vector<SearchOptions> searches() {
  std::vector<SearchOptions> all(8);
  all[1].beam_size = 1;
  all[2].beam_size = 6, all[2].num_hypotheses = 6, all[2].length_penalty = 1;
  all[3].beam_size = 3, all[3].return_attention = true, all[3].min_length = 12;
  // The numbers of marked tokens and of candidates to draw from change between steps.
  all[4].repetition_penalty = 1.5;
  all[5].beam_size = 1, all[5].no_repeat_ngram_size = 2;
  all[6].suppress_sequences = "20, 30 31", all[6].disable_unk = true;
  all[7].beam_size = 1, all[7].sampling_top_k = 5;
  return all;
}

std::vector<Translation> translate(const Translator& translator,
                                   const std::vector<std::string>& lines,
                                   const SearchOptions& options) {
  const std::vector<std::string_view> views(lines.begin(), lines.end());
  // Half of the lines force a prefix.
  std::vector<Tokens> prefixes(lines.size());
  for (std::size_t i = 0; i < lines.size(); i += 2) prefixes[i] = {5};
  const auto job = translator.job({views, {prefixes}}, options);
  translator.service().submit(job);
  translator.service().wait(job, std::nullopt);
  return job->translations();
}

void compare(const char* bundle, const char* target, const Comparison& comparison,
             const std::vector<std::string>& lines) {
  tt_load_options options;
  write_default(&options, sizeof(options));
  options.target = target;
  options.threads = 1;
  options.batch_tokens = kBatchTokens;
  const Translator on_host(bundle, options);
  for (const Place place : {Place::kDevice, Place::kBuckets, Place::kTwoCopies}) {
    {
      fake_cuda() = {};
      const Translator on_device(bundle, options, [place] { return array_place(place, 0, 200); });
      for (const SearchOptions& search : searches()) {
        const auto expected = translate(on_host, lines, search);
        const auto found = translate(on_device, lines, search);
        std::size_t differing = 0;
        for (std::size_t i = 0; i < lines.size(); ++i) {
          differing += !comparison.same(expected[i], found[i]);
        }
        if (differing > 0) {
          std::cerr << differing << " lines differ at place " << static_cast<int>(place)
                    << ", beam size " << search.beam_size << "\n";
        }
        CHECK(differing == 0);
      }
      const auto steps = static_cast<std::size_t>(on_device.service().statistics().steps);
      const FakeCuda& now = fake_cuda();
      std::cout << "place " << static_cast<int>(place) << ": " << steps << " steps, "
                << now.bytes_out / steps << " bytes out and " << now.bytes_in / steps
                << " bytes in a step, " << now.made.at("memory") << " allocations\n";
    }
    CHECK(fake_cuda().left() == 0 && fake_cuda().violations.empty());
  }
}

// Functions that are found by their index in ONNX Runtime's API.
void test_plugin_functions() {
  const auto library = OnnxRuntimeLibrary::open("");
  CHECK(library->later<ProviderDevices>(9999, kProviderDevices) == nullptr);
  const auto list = library->later<ProviderDevices>(kPluginApiVersion, kProviderDevices);
  if (list == nullptr) return;  // an ONNX Runtime before 1.24
  const ProviderDevice* const* devices = nullptr;
  std::size_t count = 0;
  library->check(list(library->environment(), &devices, &count));
  const auto name_of = library->later<ProviderName>(kPluginApiVersion, kProviderName);
  CHECK(count > 0 && std::string(name_of(devices[0])) == "CPUExecutionProvider");

  const auto memory = memory_of(*library, {Provider::kTensorRtRtx, 1, "tensorrt-rtx:1"});
  const OrtApi& api = library->api();
  int index = -1;
  library->check(api.MemoryInfoGetId(memory.get(), &index));
  OrtMemoryInfoDeviceType type = OrtMemoryInfoDeviceType_CPU;
  api.MemoryInfoGetDeviceType(memory.get(), &type);
  CHECK(index == 1 && type == OrtMemoryInfoDeviceType_GPU);

  const auto options =
      library->make<OrtSessionOptions>(api.ReleaseSessionOptions, api.CreateSessionOptions);
  const SessionDevice rtx = {Provider::kTensorRtRtx, 0, "tensorrt-rtx"};
  const auto refusal = [&](const std::string& plugin) {
    return thrown([&] { append_provider(*library, *options, rtx, plugin, {}, {}); });
  };
  CHECK(contains(refusal(""), "TT_OPTION_ERROR device is tensorrt-rtx, which needs the library"));
  CHECK(contains(refusal("/nowhere"), "provider is '/nowhere', and there is no such file."));
  const std::string error = refusal(FAKE_CUDA_DRIVER);  // a library, but no plugin
  CHECK(contains(error, "cannot use the device tensorrt-rtx: "));
  CHECK(contains(error, "CreateEpFactories"));
  CHECK(refusal(FAKE_CUDA_DRIVER) == error);  // a failed registration is not remembered
  const auto append = library->later<AppendProvider>(kPluginApiVersion, kAppendProvider);
  library->check(append(options.get(), library->environment(), devices, 1, nullptr, nullptr, 0));
}

}  // namespace

}  // namespace translate_trt::runtime

int main(int count, char** arguments) {
  namespace runtime = translate_trt::runtime;
  if (count != 4) return 2;
  runtime::use_fake_driver(FAKE_CUDA_DRIVER);
  std::vector<std::string> lines;
  for (std::string line; std::getline(std::cin, line);) lines.push_back(line);
  runtime::test_plugin_functions();
  runtime::compare(arguments[1], arguments[2], {std::stod(arguments[3])}, lines);
  if (runtime::failures == 0) std::cout << "all passed\n";
  return runtime::failures == 0 ? 0 : 1;
}
