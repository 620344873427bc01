// A fake backend: a sentence of n tokens finishes after n steps, and all its tokens are n.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "bundle/manifest.h"
#include "core/sentence.h"

namespace translate_trt::runtime {

// Begins translations with token 2 and ends them with token 3.
inline constexpr ModelDescription kModel = {50, 2, 3, 1, 50, true};

// Creates single-beam sentences with these lengths, indexed in order.
inline std::vector<Sentence> sentences_of(const std::vector<std::size_t>& lengths) {
  std::vector<Sentence> sentences;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    // A sentence that equals another one would not be searched.
    sentences.push_back({i, Tokens(lengths[i], static_cast<std::int64_t>(5 + i)), {}, {}});
    sentences.back().options.beam_size = 1;
  }
  return sentences;
}

class CountingBatch : public Batch {
 public:
  // before_step: called before each step with its number of rows.
  explicit CountingBatch(std::function<void(std::int64_t)> before_step = {})
      : before_step_(std::move(before_step)) {}

  std::int64_t rows() const override { return static_cast<std::int64_t>(left_.size()); }

  std::pair<Rows, Rows> update(const Rows& keep, const Sources& arriving) override {
    std::vector<std::int64_t> left, length;
    Rows kept, placed;
    for (const auto row : keep) {
      kept.push_back(static_cast<std::int64_t>(left.size()));
      left.push_back(left_[static_cast<std::size_t>(row)]);
      length.push_back(length_[static_cast<std::size_t>(row)]);
    }
    for (const Tokens& tokens : arriving.tokens) {
      placed.push_back(static_cast<std::int64_t>(left.size()));
      left.push_back(static_cast<std::int64_t>(tokens.size()) - 1);
      length.push_back(left.back());
    }
    left_ = left, length_ = length;
    return {kept, placed};
  }

  const StepResults& step(const StepInputs&) override {
    if (before_step_) before_step_(rows());
    StepResult& result = result_.front();
    result = {};
    for (std::size_t row = 0; row < left_.size(); ++row) {
      left_[row] -= left_[row] > 0;
      result.tokens.push_back(length_[row]);
      result.parents.push_back(0);
      result.log_probs.push_back(-1);
      result.done.push_back(left_[row] == 0);
    }
    return result_;
  }

  Pool pool(std::int64_t row) const override {
    return {{-1}, {length_[static_cast<std::size_t>(row)] + 1}, {0}, {0}};
  }

  void retire(std::int64_t row) override { left_[static_cast<std::size_t>(row)] = 0; }

  void drop(std::int64_t, std::int64_t) override {}

 private:
  std::function<void(std::int64_t)> before_step_;
  std::vector<std::int64_t> left_, length_;
  StepResults result_ = StepResults(1);
};

class CountingBackend : public Backend {
 public:
  explicit CountingBackend(std::function<std::unique_ptr<Batch>()> make) : make_(std::move(make)) {}

  std::unique_ptr<Batch> batch(const SearchOptions&, std::int64_t) const override {
    return make_();
  }

 private:
  std::function<std::unique_ptr<Batch>()> make_;
};

}  // namespace translate_trt::runtime
