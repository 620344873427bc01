// Attention over shared keys and values.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernel_check.h"

namespace translate_trt {
namespace {

constexpr float kHidden = -1e9F;

struct Size {
  std::size_t sentences, queries, heads, positions, size;
  bool own_bias;          // a bias row for each query, or one for all
  bool of_heads = false;  // rows for each head

  std::string text() const {
    std::string text = of_heads ? "bias of heads" : own_bias ? "own bias" : "one bias";
    for (const auto number : {sentences, queries, heads, positions, size}) {
      text += " " + std::to_string(number);
    }
    return text;
  }
};

constexpr Size kSizes[] = {
    {0, 4, 2, 8, 16, false},    {1, 1, 1, 1, 1, false},        {1, 2, 3, 15, 20, true},
    {2, 3, 2, 16, 8, true},     {3, 4, 5, 17, 64, true},       {4, 5, 2, 33, 16, true},
    {5, 6, 3, 40, 72, false},   {1, 17, 4, 31, 33, false},     {2, 30, 3, 30, 64, false},
    {4, 12, 1, 100, 130, true}, {2, 3, 3, 40, 16, true, true}, {3, 33, 2, 33, 8, true, true},
};

// Rounds keys and values to the type that a kernel reads.
std::vector<float> rounded(const Kernels&, std::vector<float>& x, const float*) { return x; }

std::vector<Half> rounded(const Kernels& kernels, std::vector<float>& x, const Half*) {
  std::vector<Half> halves(x.size());
  kernels.to_half(x.data(), x.size(), halves.data());
  std::transform(halves.begin(), halves.end(), x.begin(), float_of_half);
  return halves;
}

template <class Number>
class Case {
 public:
  Case(const Size& size, const Kernels& kernels, Numbers& numbers)
      : size_(size),
        hidden_size_(size.heads * size.size),
        query_stride_(hidden_size_ + 5),
        bias_rows_(size.own_bias ? size.queries : 1),
        bias_heads_(size.of_heads ? size.heads : 1),
        query_(numbers.floats(size.sentences * size.queries * query_stride_)),
        key_(numbers.floats(size.sentences * size.positions * hidden_size_)),
        value_(numbers.floats(size.sentences * size.positions * hidden_size_)),
        bias_(numbers.floats(size.sentences * bias_heads_ * bias_rows_ * size.positions)),
        keys_(rounded(kernels, key_, static_cast<const Number*>(nullptr))),
        values_(rounded(kernels, value_, static_cast<const Number*>(nullptr))) {
    // All heads mask the same positions.
    const auto plane = bias_rows_ * size.positions;
    for (std::size_t i = 0; i < bias_.size(); ++i) {
      const auto first = i / (bias_heads_ * plane) * bias_heads_ * plane + i % plane;
      if (bias_[first] < -0.3F) bias_[i] = kHidden;
    }
    // The last of several sentences is idle.
    if (size.sentences > 1) {
      const auto count = bias_heads_ * plane;
      std::fill_n(bias_.end() - static_cast<std::ptrdiff_t>(count), count, kHidden);
    }
    // Positions that no query attends to must not be read.
    for (std::size_t n = 0; n < size.sentences; ++n) {
      for (std::size_t position = 0; position < size.positions; ++position) {
        if (is_seen(n, position)) continue;
        for (std::size_t h = 0; h < size.heads; ++h) {
          const auto at = ((n * size.heads + h) * size.positions + position) * size.size;
          std::fill_n(keys_.data() + at, size.size, not_a_number(Number{}));
          std::fill_n(values_.data() + at, size.size, not_a_number(Number{}));
        }
      }
    }
  }

  // The context and, if wanted, the weights.
  std::vector<float> run(TestExecutor& executor,
                         void (*attend)(const Attention<Number>&, Executor&), bool weights) const {
    std::vector<float> found(context_count() + (weights ? weight_count() : 0), 12345);
    attend({size_.sentences, size_.queries, size_.heads, size_.positions, size_.size, query_.data(),
            query_stride_, keys_.data(), values_.data(), size_.positions * hidden_size_,
            size_.positions * size_.size, size_.size, bias_.data(), bias_rows_, found.data(),
            weights ? found.data() + context_count() : nullptr, bias_heads_},
           executor);
    return found;
  }

  // The context and the weights.
  std::vector<float> expected() const {
    std::vector<float> found(context_count() + weight_count());
    for (std::size_t n = 0; n < size_.sentences; ++n) {
      for (std::size_t q = 0; q < size_.queries; ++q) {
        for (std::size_t h = 0; h < size_.heads; ++h) attend(n, q, h, found);
      }
    }
    return found;
  }

 private:
  std::size_t context_count() const { return size_.sentences * size_.queries * hidden_size_; }
  std::size_t weight_count() const {
    return size_.sentences * size_.heads * size_.queries * size_.positions;
  }

  static float not_a_number(float) { return std::numeric_limits<float>::quiet_NaN(); }
  static Half not_a_number(Half) { return 0x7E00; }

  float bias(std::size_t n, std::size_t q, std::size_t position, std::size_t h = 0) const {
    const auto head = n * bias_heads_ + (bias_heads_ == 1 ? 0 : h);
    return bias_[(head * bias_rows_ + (bias_rows_ == 1 ? 0 : q)) * size_.positions + position];
  }

  bool is_seen(std::size_t n, std::size_t position) const {
    for (std::size_t q = 0; q < bias_rows_; ++q) {
      if (bias(n, q, position) > -1e8F) return true;
    }
    return false;
  }

  // One query and head, in double precision.
  void attend(std::size_t n, std::size_t q, std::size_t h, std::vector<float>& found) const {
    const auto* query = query_.data() + (n * size_.queries + q) * query_stride_ + h * size_.size;
    std::vector<double> scores(size_.positions, -INFINITY), sums(size_.size);
    double most = -INFINITY, total = 0;
    for (std::size_t position = 0; position < size_.positions; ++position) {
      if (!is_seen(n, position)) continue;
      scores[position] = bias(n, q, position, h);
      for (std::size_t d = 0; d < size_.size; ++d) {
        scores[position] += double{query[d]} * key_[at(n, h, position) + d];
      }
      most = std::max(most, scores[position]);
    }
    for (std::size_t position = 0; position < size_.positions; ++position) {
      if (!is_seen(n, position)) continue;
      const double weight = std::exp(scores[position] - most);
      total += weight;
      for (std::size_t d = 0; d < size_.size; ++d) {
        sums[d] += weight * value_[at(n, h, position) + d];
      }
    }
    for (std::size_t d = 0; d < size_.size; ++d) {
      found[(n * size_.queries + q) * hidden_size_ + h * size_.size + d] =
          total == 0 ? 0 : static_cast<float>(sums[d] / total);
    }
    const auto row = (n * size_.heads + h) * size_.queries + q;
    for (std::size_t position = 0; position < size_.positions && total > 0; ++position) {
      found[context_count() + row * size_.positions + position] =
          static_cast<float>(std::exp(scores[position] - most) / total);
    }
  }

  std::size_t at(std::size_t n, std::size_t h, std::size_t position) const {
    return ((n * size_.heads + h) * size_.positions + position) * size_.size;
  }

  const Size size_;
  const std::size_t hidden_size_, query_stride_, bias_rows_, bias_heads_;
  const std::vector<float> query_;
  std::vector<float> key_, value_, bias_;
  std::vector<Number> keys_, values_;
};

template <class Number>
void test_attention(const std::string& name,
                    void (*const Kernels::*attend)(const Attention<Number>&, Executor&)) {
  in_all_ways([&](const Kernels& kernels, TestExecutor& executor, const std::string& way) {
    Numbers numbers;
    for (const auto& size : kSizes) {
      const Case<Number> one(size, kernels, numbers);
      auto found = one.run(executor, kernels.*attend, true);
      check_close(way + name + ", " + size.text(), found, one.expected(), 2e-6, 2e-6);
      const auto context = one.run(executor, kernels.*attend, false);
      found.resize(context.size());
      check_same(way + name + " without weights, " + size.text(), context, found);
    }
  });
}

}  // namespace

void test_kernel_attention() {
  test_attention<float>("attention", &Kernels::attention);
  test_attention<Half>("attention16", &Kernels::attention16);
}

}  // namespace translate_trt
