// Every compiled kernel against plain C++. The exit code is 1 if a test fails.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iostream>
#include <thread>
#include <vector>

#include "../kernels/processor.h"
#include "base/platform.h"
#include "kernel_check.h"

namespace translate_trt {

std::vector<const Kernels*> tables() {
  std::vector<const Kernels*> found = {&plain};
#ifdef TRANSLATE_TRT_NEON
  if (has_dot_products()) found.push_back(&neon_dotprod);
#endif
#ifdef TRANSLATE_TRT_WASM
  found.push_back(&wasm_simd128);
#endif
#ifdef TRANSLATE_TRT_AVX2
  if (has_avx2()) found.push_back(&avx2_fma);
#endif
#ifdef TRANSLATE_TRT_AVX_VNNI
  if (has_avx_vnni()) found.push_back(&avx2_vnni);
#endif
#ifdef TRANSLATE_TRT_AVX512
  if (has_avx512_vnni()) found.push_back(&avx512_vnni);
#endif
  if (host_kernels().linear != nullptr && found.back() != &host_kernels()) {
    found.push_back(&host_kernels());
  }
  return found;
}

void TestExecutor::run(std::size_t count, const TaskFunction& task) {
  switch (order_) {
    case Order::forwards:
      for (std::size_t i = 0; i < count; ++i) task.run(task.closure, i);
      break;
    case Order::backwards:
      for (std::size_t i = count; i > 0; --i) task.run(task.closure, i - 1);
      break;
    case Order::threads: {
      std::atomic<std::size_t> next{0};
      const auto work = [&] {
        for (auto i = next++; i < count; i = next++) task.run(task.closure, i);
      };
      std::vector<std::thread> threads;
      for (int i = 0; i < 2 && runtime::kHasThreads; ++i) threads.emplace_back(work);
      work();
      for (auto& one : threads) one.join();
      break;
    }
  }
}

void in_all_ways(
    const std::function<void(const Kernels&, TestExecutor&, const std::string&)>& test) {
  using Order = TestExecutor::Order;
  for (const auto* kernels : tables()) {
    for (const auto order : {Order::forwards, Order::backwards, Order::threads}) {
      if (order == Order::threads && !runtime::kHasThreads) continue;
      TestExecutor executor(order);
      const char* names[] = {"forwards", "backwards", "in threads"};
      test(*kernels, executor,
           std::string(kernels->name) + " " + names[static_cast<std::size_t>(order)] + ": ");
    }
  }
}

namespace {

template <class T, class Same>
void check_all(const std::string& what, const std::vector<T>& found, const std::vector<T>& expected,
               const Same& same) {
  if (found.size() != expected.size()) {
    std::cerr << what << ": " << found.size() << " numbers, not " << expected.size() << "\n";
    ++failures;
    return;
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (same(found[i], expected[i])) continue;
    std::cerr << what << ": number " << i << " is " << found[i] << ", not " << expected[i] << "\n";
    ++failures;
    return;
  }
}

}  // namespace

void check_same(const std::string& what, const std::vector<float>& found,
                const std::vector<float>& expected) {
  std::cerr.precision(9);
  check_all(what, found, expected,
            [](float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; });
}

void check_close(const std::string& what, const std::vector<float>& found,
                 const std::vector<float>& expected, double relative, double absolute) {
  check_all(what, found, expected, [=](float a, float b) {
    return a == b || std::abs(double{a} - double{b}) <= relative * std::abs(double{b}) + absolute;
  });
}

void check_same(const std::string& what, const std::vector<std::int64_t>& found,
                const std::vector<std::int64_t>& expected) {
  check_all(what, found, expected, [](auto a, auto b) { return a == b; });
}

Row8 in_8_bits(const float* row, std::size_t count, bool positive) {
  float most = 0;
  for (std::size_t i = 0; i < count; ++i) most = std::max(most, std::abs(row[i]));
  Row8 found = {{}, most * (positive ? 1.0F / 255 : 1.0F / 127)};
  const std::int32_t zero = positive ? 0 : 128;
  for (std::size_t i = 0; i < count; ++i) {
    const auto rounded = found.scale == 0 ? 0 : std::lrint(row[i] / found.scale);
    const auto byte = std::clamp<long>(rounded + zero, 0, 255);
    found.integers.push_back(static_cast<std::int32_t>(byte) - zero);
  }
  return found;
}

std::vector<float> with_epilogue(const std::vector<float>& matmul_results, const Epilogue& epilogue,
                                 std::size_t outputs) {
  std::vector<float> y(matmul_results.size());
  for (std::size_t i = 0; i < y.size(); ++i) {
    float value = matmul_results[i] + epilogue.bias[i % outputs];
    const double x = value;
    switch (epilogue.activation) {
      case Activation::none:
        break;
      case Activation::relu:
        value = value > 0 ? value : 0;
        break;
      case Activation::gelu:
        value = static_cast<float>(x * 0.5 * std::erfc(-x / std::sqrt(2.0)));
        break;
      case Activation::swish:
        value = static_cast<float>(x / (1 + std::exp(-x)));
        break;
    }
    y[i] = value + (epilogue.residual == nullptr ? 0.0F : epilogue.residual[i]);
  }
  return y;
}

std::vector<float> normalized(const std::vector<float>& x, const Norm& norm, std::size_t columns) {
  std::vector<float> y(x.size());
  for (std::size_t row = 0; row < x.size() / columns; ++row) {
    const auto* here = x.data() + row * columns;
    double mean = 0, variance = 0;
    for (std::size_t i = 0; norm.beta != nullptr && i < columns; ++i) {
      mean += here[i] / static_cast<double>(columns);
    }
    for (std::size_t i = 0; i < columns; ++i) {
      variance += (here[i] - mean) * (here[i] - mean) / static_cast<double>(columns);
    }
    for (std::size_t i = 0; i < columns; ++i) {
      y[row * columns + i] = static_cast<float>(
          (here[i] - mean) / std::sqrt(variance + double{norm.epsilon}) * norm.gamma[i] +
          (norm.beta == nullptr ? 0 : norm.beta[i]));
    }
  }
  return y;
}

}  // namespace translate_trt

int main() {
  using namespace translate_trt;
  test_workspace();
  test_kernel_rows();
  test_kernel_linear();
  test_kernel_attention();
  test_kernel_candidates();
  if (failures != 0) return 1;
  std::cout << "all passed:";
  for (const auto* kernels : tables()) std::cout << " " << kernels->name;
  std::cout << "\n";
  return 0;
}
