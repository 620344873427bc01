// Shared helpers of the kernel tests: kernel tables, executors and comparisons.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "../kernels/kernels.h"
#include "../kernels/workspace.h"
#include "check.h"
#include "numbers.h"

namespace translate_trt {

using runtime::failures;

// The plain kernels, and those for special instructions that this processor has.
std::vector<const Kernels*> tables();

// Runs tasks sequentially, forwards or backwards, or in three threads, where there are threads.
class TestExecutor final : public Executor {
 public:
  enum class Order { forwards, backwards, threads };

  explicit TestExecutor(Order order = Order::forwards) : order_(order) {}

  void run(std::size_t count, const TaskFunction& task) override;
  WorkspacePool& workspaces() override { return workspaces_; }

 private:
  const Order order_;
  WorkspacePool workspaces_;
};

// Calls test(kernels, executor, name) for all kernel tables and task orders.
void in_all_ways(
    const std::function<void(const Kernels&, TestExecutor&, const std::string&)>& test);

// Checks that both are bitwise equal; prints the first number that differs.
void check_same(const std::string& what, const std::vector<float>& found,
                const std::vector<float>& expected);

// Checks that both are equal within a relative plus an absolute tolerance.
void check_close(const std::string& what, const std::vector<float>& found,
                 const std::vector<float>& expected, double relative, double absolute);

void check_same(const std::string& what, const std::vector<std::int64_t>& found,
                const std::vector<std::int64_t>& expected);

inline std::size_t ceiling(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// A row of activations in 8 bits, as kernels quantize it.
struct Row8 {
  std::vector<std::int32_t> integers;
  float scale;
};
Row8 in_8_bits(const float* row, std::size_t count, bool positive = false);

// Reference epilogue of matmul results [rows, outputs] without the normalization, in the arithmetic
// of the kernels except for GELU and swish; and the reference normalization, in double precision.
std::vector<float> with_epilogue(const std::vector<float>& matmul_results, const Epilogue& epilogue,
                                 std::size_t outputs);
std::vector<float> normalized(const std::vector<float>& x, const Norm& norm, std::size_t columns);

// The tests of each file.
void test_kernel_attention();
void test_kernel_candidates();
void test_kernel_linear();
void test_kernel_rows();
void test_workspace();

}  // namespace translate_trt
