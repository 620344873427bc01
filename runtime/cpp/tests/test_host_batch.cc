// Options of the rows of a host batch; checked_batch.h compares what moves with its rows.

#include <algorithm>
#include <memory>
#include <vector>

#include "backends/host_batch.h"
#include "check.h"
#include "decoder_shape.h"

namespace translate_trt::runtime {

namespace {

// Fake graphs that record the request of a step, and otherwise only go on to the next slot.
class WatchingGraphs : public Graphs {
 public:
  explicit WatchingGraphs(Arrays& seen) : seen_(seen) {}

  void encode(const Arrays&, const Arrays&) override {}

  std::function<void()> bind(const Arrays& inputs, const Arrays& outputs) override {
    return [this, inputs, outputs] {
      seen_ = inputs;
      const Tensor& ancestry = *inputs.at("ancestry");
      for (std::int64_t row = 0; row < ancestry.axis(0); ++row) {
        const auto slot = inputs.at("slots")->row<std::int64_t>(row)[0];
        const auto position = inputs.at("positions")->row<std::int64_t>(row)[0];
        outputs.at("next_positions")->row<std::int64_t>(row)[0] = position + 1;
        float* next = outputs.at("next_ancestry")->row<float>(row);
        std::copy_n(ancestry.row<float>(row), ancestry.axis(2), next);
        next[slot] = 0;
        outputs.at("next_slots")->row<std::int64_t>(row)[0] = slot + 1;
      }
    };
  }

 private:
  Arrays& seen_;
};

void test_options_that_no_row_has_add_no_columns() {
  DecoderShape shape = {1, 1, 1, 1, false, {}};
  shape.form.cache_type = Type::kFloat16;
  Contract contract = shape;
  contract.request.push_back({kMarkedTokens, Type::kInt64, {kN, kK, kB}});
  contract.request.push_back({kMarkedFactors, Type::kFloat32, {kN, kK, kB}});
  SearchOptions options;
  options.beam_size = 1;
  Arrays seen;
  HostBatch batch(std::make_unique<WatchingGraphs>(seen), contract, options, 2,
                  ArrayPlace{nullptr, {0}});
  const auto columns = [&] { return seen.at(kMarkedTokens)->axis(2); };
  batch.update({}, {{{11, 3}, {12, 3}}, {7, 8}, {&options, &options}});
  batch.step({});
  CHECK(columns() == 0);
  StepInputs inputs;
  inputs.marked = {1, {5, 6}, {2, 3}};
  batch.step(inputs);
  CHECK(columns() == 1 && seen.at(kMarkedTokens)->row<std::int64_t>(1)[0] == 6);
  batch.step({});
  CHECK(columns() == 0);
}

}  // namespace

void test_host_batch() { test_options_that_no_row_has_add_no_columns(); }

}  // namespace translate_trt::runtime
