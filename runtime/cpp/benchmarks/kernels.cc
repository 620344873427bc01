// Micro-benchmark of the compiled kernels on one core: `translate_trt_kernel_benchmark
// [--kernel NAME] [--samples N] [--calls N]`; benchmarks/kernels.py runs it.
//
// Prints a JSON array with an object per kernel and shape: the median and minimum time of a call in
// nanoseconds over N samples, and the memory throughput (GB/s) and operations (GOP/s) at the
// minimum time, counting only necessary bytes and operations. With --calls, each case runs exactly
// N times without timing, for tools that count instructions.

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../kernels/beam_search.h"
#include "../kernels/kernels.h"
#include "../kernels/processor.h"
#include "../kernels/tiles.h"
#include "../kernels/workspace.h"
#include "../tests/numbers.h"

namespace translate_trt {
namespace {

// Runs tasks sequentially.
class Serial final : public Executor {
 public:
  void run(std::size_t count, const TaskFunction& task) override {
    for (std::size_t i = 0; i < count; ++i) task.run(task.closure, i);
  }
  WorkspacePool& workspaces() override { return workspaces_; }

 private:
  WorkspacePool workspaces_;
};

struct Options {
  std::string kernel;  // empty: all kernels
  int samples = 15;
  int calls = 0;  // 0: as many as a sample takes
};

class Benchmark {
 public:
  explicit Benchmark(const Options& options) : options_(options) {}

  // Measures a case. bytes, operations: per call.
  void measure(const std::string& kernel, const std::string& shape, std::size_t bytes,
               std::size_t operations, const std::function<void()>& call) {
    if (!options_.kernel.empty() && kernel != options_.kernel) return;
    if (options_.calls > 0) {
      for (int i = 0; i < options_.calls; ++i) call();
      return;
    }
    const auto samples = sorted_samples(call);
    const double median = samples[samples.size() / 2], fastest = samples.front();
    std::cout << (first_ ? "[" : ",") << "\n  {\"kernel\": \"" << kernel << "\", \"shape\": \""
              << shape << "\", \"nanoseconds\": " << std::lround(median)
              << ", \"fastest\": " << std::lround(fastest)
              << ", \"gigabytes_per_second\": " << rounded(static_cast<double>(bytes) / fastest)
              << ", \"giga_operations_per_second\": "
              << rounded(static_cast<double>(operations) / fastest) << "}" << std::flush;
    first_ = false;
  }

  void finish() const {
    if (options_.calls == 0) std::cout << (first_ ? "[" : "\n") << "]\n";
  }

 private:
  using Clock = std::chrono::steady_clock;

  static double rounded(double value) { return std::round(value * 100) / 100; }

  static double nanoseconds(const std::function<void()>& call, int calls) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    return std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / calls;
  }

  std::vector<double> sorted_samples(const std::function<void()>& call) const {
    constexpr double kSample = 5e6;  // minimum nanoseconds of a sample
    call();
    const double once = std::max(nanoseconds(call, 3), 1.0);
    const int calls = 1 + static_cast<int>(kSample / once);
    std::vector<double> samples;
    for (int i = 0; i < options_.samples; ++i) samples.push_back(nanoseconds(call, calls));
    std::sort(samples.begin(), samples.end());
    return samples;
  }

  const Options options_;
  bool first_ = true;
};

std::string sizes(const std::vector<std::pair<std::string, std::size_t>>& named) {
  std::string text;
  for (const auto& [name, size] : named) {
    text += (text.empty() ? "" : " ") + name + "=" + std::to_string(size);
  }
  return text;
}

// Result arrays of a kernel that computes candidates.
struct Found {
  Found(std::size_t rows, std::size_t count)
      : columns(rows),
        values(rows * count),
        indices(rows * count),
        at_columns(rows),
        count(count) {}

  Candidates candidates() {
    return {count, 1, columns.data(), values.data(), indices.data(), at_columns.data()};
  }

  std::vector<std::int64_t> columns;
  std::vector<float> values;
  std::vector<std::int64_t> indices;
  std::vector<float> at_columns;
  std::size_t count;
};

constexpr std::size_t kBeams = 4, kCandidates = 8, kModel = 512, kHeads = 8, kVocabulary = 32000;

struct Sizes {
  std::size_t rows, inputs, outputs;

  std::string text() const {
    return sizes({{"rows", rows}, {"inputs", inputs}, {"outputs", outputs}});
  }
  std::size_t operations() const { return 2 * rows * inputs * outputs; }
};

const std::vector<Sizes> kMatrices = {
    {4, 512, 512},   {4, 512, 2048},  {4, 2048, 512},   {8, 512, 2048},   {12, 512, 2048},
    {32, 512, 2048}, {256, 512, 512}, {256, 512, 2048}, {256, 2048, 512},
};

const std::vector<Sizes> kColdMatrices = {
    {1, 512, 2048},  {2, 512, 2048},  {4, 512, 2048},  {6, 512, 2048},  {8, 512, 2048},
    {12, 512, 2048}, {20, 512, 2048}, {36, 512, 2048}, {20, 2048, 512}, {36, 2048, 512},
};

void measure_matrices(const Kernels& kernels, Benchmark& benchmark, Serial& executor) {
  Numbers numbers;
  for (const auto& size : kMatrices) {
    const auto x = numbers.floats(size.rows * size.inputs);
    const auto bias = numbers.floats(size.outputs);
    std::vector<float> y(size.rows * size.outputs);
    const auto bytes = 4 * (x.size() + y.size());
    const Epilogue epilogue{bias.data(), Activation::relu, nullptr, nullptr, nullptr};
    {
      const auto weights = numbers.pairs_that_fit(size.inputs * size.outputs);
      const std::vector<float> scales(size.outputs, 0.01F);
      std::vector<std::int32_t> sums(size.outputs);
      const Matrix8 matrix{weights.data(), scales.data(),     sums.data(), size.inputs,
                           size.outputs,   size.outputs / 16, true};
      kernels.column_sums(matrix, sums.data());
      const Linear8 linear{matrix, false, epilogue};
      benchmark.measure("linear8", size.text(), bytes + weights.size(), size.operations(),
                        [&] { kernels.linear8(linear, x.data(), size.rows, y.data(), executor); });
    }
    const auto weights = numbers.floats(size.inputs * size.outputs);
    const Linear linear{{weights.data(), size.inputs, size.outputs, size.outputs / 64}, epilogue};
    benchmark.measure("linear", size.text(), bytes + 4 * weights.size(), size.operations(),
                      [&] { kernels.linear(linear, x.data(), size.rows, y.data(), executor); });
  }
}

// A step multiplies by the weights of all layers in turn, which come from the shared cache or from
// memory.
void measure_cold_matrices(const Kernels& kernels, Benchmark& benchmark, Serial& executor) {
  constexpr std::size_t kCopies = 40;
  Numbers numbers;
  for (const auto& size : kColdMatrices) {
    const auto x = numbers.floats(size.rows * size.inputs);
    const auto bias = numbers.floats(size.outputs);
    std::vector<float> y(size.rows * size.outputs);
    const Epilogue epilogue{bias.data(), Activation::relu, nullptr, nullptr, nullptr};
    const std::size_t one = size.inputs * size.outputs;
    const auto weights = numbers.pairs_that_fit(kCopies * one);
    const std::vector<float> scales(size.outputs, 0.01F);
    const std::vector<std::int32_t> sums(size.outputs);
    std::size_t copy = 0;
    benchmark.measure(
        "linear8_cold", size.text(), 4 * (x.size() + y.size()) + one, size.operations(), [&] {
          const Matrix8 matrix{
              weights.data() + copy * one, scales.data(), sums.data(), size.inputs, size.outputs,
              size.outputs / 16,           true};
          copy = (copy + 1) % kCopies;
          kernels.linear8({matrix, false, epilogue}, x.data(), size.rows, y.data(), executor);
        });
  }
}

void measure_candidates(const Kernels& kernels, Benchmark& benchmark, Serial& executor) {
  Numbers numbers;
  const auto columns = numbers.floats(kVocabulary * kModel, 0.05F);
  const auto bias = numbers.floats(kVocabulary);
  const auto weights = numbers.pairs_that_fit(kVocabulary * kModel);
  const std::vector<float> scales(kVocabulary, 0.001F);
  std::vector<std::int32_t> sums(kVocabulary);
  const Matrix8 matrix{weights.data(), scales.data(),    sums.data(), kModel,
                       kVocabulary,    kVocabulary / 16, true};
  kernels.column_sums(matrix, sums.data());
  Arena memory;
  const auto vocabulary =
      kernels.vocabulary(columns.data(), bias.data(), kVocabulary, kModel, memory);
  for (const std::size_t rows : {4, 64}) {
    const Sizes size{rows, kModel, kVocabulary};
    const auto x = numbers.floats(rows * kModel);
    Found found(rows, kCandidates);
    const auto out = found.candidates();
    benchmark.measure("candidates8", size.text(), weights.size(), size.operations(), [&] {
      kernels.candidates8(matrix, bias.data(), x.data(), rows, out, executor);
    });
    benchmark.measure("candidates", size.text(), 2 * columns.size(), size.operations(), [&] {
      kernels.candidates(vocabulary, columns.data(), x.data(), rows, out, executor);
    });
    const auto logits = numbers.floats(rows * kVocabulary, 8);
    benchmark.measure("top_logits", sizes({{"rows", rows}, {"columns", kVocabulary}}),
                      4 * logits.size(), logits.size(),
                      [&] { kernels.top_logits(logits.data(), rows, kVocabulary, out, executor); });
  }
  struct Lists {
    std::size_t sentences, beams;
  };
  for (const auto& [sentences, beams] : {Lists{1, 1}, Lists{32, 1}, Lists{1, 4}, Lists{16, 4}}) {
    constexpr std::size_t kListed = 256;
    const auto rows = sentences * beams;
    const auto tokens = numbers.integers(sentences * kListed, kVocabulary);
    const auto x = numbers.floats(rows * kModel);
    Found found(rows, 2 * beams + 1);
    const auto out = found.candidates();
    const Shortlists lists{sentences, beams, kListed, kModel, tokens.data(), nullptr};
    const auto text = sizes(
        {{"sentences", sentences}, {"beams", beams}, {"tokens", kListed}, {"inputs", kModel}});
    const auto numbers_read = sentences * kListed * kModel;
    benchmark.measure("listed", text, 4 * numbers_read, 2 * beams * numbers_read, [&] {
      kernels.shortlist_candidates(lists, columns.data(), x.data(), out, executor);
    });
    benchmark.measure("listed8", text, numbers_read, 2 * beams * numbers_read, [&] {
      kernels.shortlist_candidates8(lists, weights.data(), scales.data(), sums.data(), x.data(),
                                    out, executor);
    });
  }
}

// Measures attention of beams over slots of which each beam attends to half, and of source tokens.
template <class Number>
void measure_attention(const std::string& kernel, const Kernels& kernels,
                       void (*attend)(const Attention<Number>&, Executor&), Benchmark& benchmark,
                       Serial& executor) {
  struct Case {
    std::size_t sentences, queries, places;
    bool beams;
  };
  constexpr std::size_t kSize = kModel / kHeads;
  for (const auto& [sentences, queries, places, beams] :
       {Case{32, 1, 16, true}, Case{1, kBeams, 64, true}, Case{16, kBeams, 64, true},
        Case{16, kBeams, 200, true}, Case{16, 30, 30, false}}) {
    Numbers numbers;
    const auto query = numbers.floats(sentences * queries * kModel);
    const auto floats = numbers.floats(2 * sentences * places * kModel);
    std::vector<Number> cache(floats.size());
    if constexpr (std::is_same_v<Number, Half>) {
      kernels.to_half(floats.data(), floats.size(), cache.data());
    } else {
      cache = floats;
    }
    const auto bias_rows = beams ? queries : 1;
    auto bias = numbers.floats(sentences * bias_rows * places);
    for (auto& one : bias) one = beams && one < 0 ? -1e9F : 0;
    std::vector<float> context(sentences * queries * kModel);
    const Attention<Number> attention{
        sentences,       queries,        kHeads,
        places,          kSize,          query.data(),
        kModel,          cache.data(),   cache.data() + sentences * places * kModel,
        places * kModel, places * kSize, kSize,
        bias.data(),     bias_rows,      context.data()};
    benchmark.measure(kernel,
                      sizes({{"sentences", sentences},
                             {"queries", queries},
                             {"heads", kHeads},
                             {"places", places},
                             {"size", kSize}}),
                      cache.size() * sizeof(Number), 2 * queries * cache.size(),
                      [&] { attend(attention, executor); });
  }
}

void measure_rows(const Kernels& kernels, Benchmark& benchmark, Serial& executor) {
  Numbers numbers;
  for (const std::size_t rows : {1, 32}) {
    constexpr std::size_t kColumns = 256;
    const auto gates = numbers.floats(2 * rows * kColumns), state = numbers.floats(rows * kColumns);
    std::vector<float> next(state.size()), y(state.size());
    benchmark.measure("recurrent_unit", sizes({{"rows", rows}, {"columns", kColumns}}),
                      20 * state.size(), 8 * state.size(), [&] {
                        kernels.recurrent_unit(gates.data(), state.data(), rows, kColumns,
                                               next.data(), y.data(), executor);
                      });
  }
  for (const std::size_t rows : {4, 256}) {
    const auto count = rows * kModel;
    const auto x = numbers.floats(count), residual = numbers.floats(count);
    const auto gamma = numbers.floats(kModel), beta = numbers.floats(kModel);
    const Norm norm{gamma.data(), beta.data(), 1e-5F};
    std::vector<float> y(count);
    const auto text = sizes({{"rows", rows}, {"columns", kModel}});
    benchmark.measure("add_norm", text, 12 * count, 8 * count, [&] {
      kernels.add_norm(x.data(), residual.data(), rows, kModel, norm, nullptr, y.data(), executor);
    });
    std::vector<Half> halves(count);
    benchmark.measure("to_half", text, 6 * count, count,
                      [&] { kernels.to_half(x.data(), count, halves.data()); });
  }
}

#ifdef __x86_64__
// 8-bit dot products of registers alone. Sixteen independent sums hide the latency.
[[gnu::target("avx512f,avx512vnni")]] void multiply_registers(std::size_t rounds, void* sums) {
  constexpr std::size_t kSums = 16;
  __m512i all[kSums];
  const __m512i factors = _mm512_loadu_si512(sums);
  for (auto& one : all) one = factors;
  for (std::size_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (auto& one : all) one = _mm512_dpbusd_epi32(one, factors, factors);
  }
  __m512i total = all[0];
  for (const auto& one : all) total = _mm512_xor_si512(total, one);
  _mm512_storeu_si512(sums, total);
}

// The limit of a processor for 8-bit matmuls with AVX-512 VNNI.
void measure_limit(Benchmark& benchmark) {
  if (!__builtin_cpu_supports("avx512vnni")) return;
  constexpr std::size_t kRounds = 4096;
  std::vector<std::int32_t> sums(16, 0x01010101);
  // Each instruction multiplies and adds 64 pairs of bytes.
  benchmark.measure("vnni_limit", sizes({{"rounds", kRounds}}), 0, kRounds * 16 * 64 * 2,
                    [&] { multiply_registers(kRounds, sums.data()); });
}
#endif

#ifdef TRANSLATE_TRT_AMX
// The limit of a processor for 8-bit matmuls with AMX: four tiles of sums hide the latency.
void measure_tile_limit(Benchmark& benchmark) {
  if (!has_amx_int8() || !request_tiles()) return;
  constexpr std::size_t kRounds = 1024, kOperations = 2 * 16 * 16 * 64;  // of an instruction
  benchmark.measure("tile_limit", sizes({{"rounds", kRounds}}), 0, kRounds * 4 * kOperations, [] {
    amx::configure();
    for (std::size_t round = 0; round < kRounds; ++round) {
      amx::multiply_add<0, 4, 6>();
      amx::multiply_add<1, 4, 7>();
      amx::multiply_add<2, 5, 6>();
      amx::multiply_add<3, 5, 7>();
    }
    amx::release();
  });
}
#endif

// Measures the portable kernels.
void measure_search(Benchmark& benchmark) {
  constexpr std::size_t kSentences = 64, kSlots = 64;
  constexpr auto kRows = kSentences * kBeams;
  Numbers numbers;
  const auto table = numbers.floats(kVocabulary * kModel);
  const auto bytes = numbers.bytes(kVocabulary * kModel);
  const std::vector<float> scales(kVocabulary, 0.01F);
  const auto tokens = numbers.integers(kRows, kVocabulary);
  const auto positions = numbers.integers(kSentences, kSlots);
  const auto position_table = numbers.floats(kSlots * kModel);
  std::vector<float> y(kRows * kModel);
  const Embedding embedding{kSentences,       kBeams,           kModel,
                            tokens.data(),    positions.data(), position_table.data(),
                            std::sqrt(512.0F)};
  const auto rows = sizes({{"rows", kRows}, {"columns", kModel}});
  benchmark.measure("embed", rows, 12 * y.size(), 2 * y.size(),
                    [&] { embed(embedding, table.data(), y.data()); });
  benchmark.measure("embed8", rows, 9 * y.size(), 3 * y.size(),
                    [&] { embed8(embedding, bytes.data(), scales.data(), y.data()); });

  auto ancestry = numbers.floats(kRows * kSlots);
  for (auto& one : ancestry) one = one < 0 ? -1e9F : 0;
  std::vector<float> next(ancestry.size());
  const auto parents = numbers.integers(kRows, kBeams);
  std::vector<std::int64_t> slots(kRows);
  bool full[kSentences];
  const Ancestry of_beams{kSentences, kBeams, kSlots, ancestry.data(), next.data()};
  benchmark.measure("follow_ancestry",
                    sizes({{"sentences", kSentences}, {"beams", kBeams}, {"slots", kSlots}}),
                    8 * next.size(), next.size(),
                    [&] { follow_ancestry(of_beams, parents.data(), slots.data(), full); });

  constexpr auto kAll = kRows * kCandidates;
  const auto values = numbers.floats(kAll, 5), forced = numbers.floats(kRows),
             log_probs = numbers.floats(kRows, 3), scores = numbers.floats(kRows);
  const auto choices = numbers.integers(kAll, kVocabulary);
  const std::vector<std::int64_t> forced_tokens(kSentences, kFree), least(kSentences, 1),
      most(kSentences, 200), wanted(kSentences, 1), lengths(kRows, 3), finished_parents(kRows, 0),
      progress(kRows, 0);
  const std::vector<float> alphas(kSentences, 0.6F), betas(kSentences, 5);
  const bool no[kRows] = {};
  bool done[kSentences], truncated[kRows];
  std::vector<std::int64_t> found_parents(kRows), found_tokens(kRows), found_positions(kSentences),
      found_lengths(kRows), pool_parents(kRows);
  std::vector<float> found_log_probs(kRows), found_scores(kRows);
  Selection selection = {};
  selection.sentences = kSentences;
  selection.beams = kBeams;
  selection.candidates = kCandidates;
  selection.log_probabilities = values.data();
  selection.choices = choices.data();
  selection.looked_up = forced.data();
  selection.end_token = 3;
  selection.forced_tokens = forced_tokens.data();
  selection.min_lengths = least.data();
  selection.max_lengths = most.data();
  selection.alphas = alphas.data();
  selection.betas = betas.data();
  selection.num_hypotheses = wanted.data();
  selection.early_stopping = no;
  selection.log_probs = log_probs.data();
  selection.positions = positions.data();
  selection.done = no;
  selection.finished_scores = scores.data();
  selection.finished_lengths = lengths.data();
  selection.finished_parents = finished_parents.data();
  selection.finished_truncated = no;
  selection.other_progress = progress.data();
  selection.parents = found_parents.data();
  selection.next_tokens = found_tokens.data();
  selection.next_log_probs = found_log_probs.data();
  selection.next_positions = found_positions.data();
  selection.next_done = done;
  selection.next_finished_scores = found_scores.data();
  selection.next_finished_lengths = found_lengths.data();
  selection.next_finished_parents = pool_parents.data();
  selection.next_finished_truncated = truncated;
  benchmark.measure(
      "select_beams",
      sizes({{"sentences", kSentences}, {"beams", kBeams}, {"candidates", kCandidates}}), 12 * kAll,
      kAll, [&] { select_beams(selection); });
}

void measure_all(const Options& options) {
  const auto& kernels = host_kernels();
  std::cerr << "kernels: " << kernels.name << "\n";
  Benchmark benchmark(options);
  Serial executor;
#ifdef __x86_64__
  measure_limit(benchmark);
#endif
#ifdef TRANSLATE_TRT_AMX
  measure_tile_limit(benchmark);
#endif
  if (kernels.linear != nullptr) {
    measure_matrices(kernels, benchmark, executor);
    measure_cold_matrices(kernels, benchmark, executor);
    measure_candidates(kernels, benchmark, executor);
    measure_attention("attention", kernels, kernels.attention, benchmark, executor);
    measure_attention("attention16", kernels, kernels.attention16, benchmark, executor);
    measure_rows(kernels, benchmark, executor);
  }
  measure_search(benchmark);
  benchmark.finish();
}

}  // namespace
}  // namespace translate_trt

int main(int count, char** arguments) {
  translate_trt::Options options;
  for (int i = 1; i < count; i += 2) {
    const std::string name = arguments[i], value = i + 1 < count ? arguments[i + 1] : "";
    if (name == "--kernel" && !value.empty()) {
      options.kernel = value;
    } else if (name == "--samples" && std::atoi(value.c_str()) > 0) {
      options.samples = std::atoi(value.c_str());
    } else if (name == "--calls" && std::atoi(value.c_str()) > 0) {
      options.calls = std::atoi(value.c_str());
    } else {
      std::cerr << arguments[0] << " [--kernel NAME] [--samples N] [--calls N]\n";
      return 2;
    }
  }
  translate_trt::measure_all(options);
}
