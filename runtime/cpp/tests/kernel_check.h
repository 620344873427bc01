// What tests of kernels share: tables of kernels, ways to run their tasks, and comparisons.
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

// Runs tasks one after the other, forwards or backwards, or in three threads.
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

// Calls test(kernels, executor, case) for all tables and orders.
void in_all_ways(
    const std::function<void(const Kernels&, TestExecutor&, const std::string&)>& test);

// Fails, and prints the first number that differs, unless both are the same to the last bit.
void check_same(const std::string& what, const std::vector<float>& found,
                const std::vector<float>& expected);

// The same, but for `relative` of an expected number and `absolute`.
void check_close(const std::string& what, const std::vector<float>& found,
                 const std::vector<float>& expected, double relative, double absolute);

void check_same(const std::string& what, const std::vector<std::int64_t>& found,
                const std::vector<std::int64_t>& expected);

inline std::size_t ceiling(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// What an epilogue makes of products [rows, outputs] before the normalization, number by number as
// the kernels compute it, where it is not a GELU or swish; then of the whole row in double
// precision.
std::vector<float> with_epilogue(const std::vector<float>& products, const Epilogue& epilogue,
                                 std::size_t outputs);
std::vector<float> normalized(const std::vector<float>& x, const Norm& norm, std::size_t columns);

// Of each file.
void test_kernel_attention();
void test_kernel_candidates();
void test_kernel_linear();
void test_kernel_rows();
void test_kernel_search();
void test_workspace();

}  // namespace translate_trt
