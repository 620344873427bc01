// Fake graphs that derive tokens from a digest of all visible state of a sentence: if a batch
// loses, confuses or unmasks any of it, all later tokens change.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backends/host_batch.h"
#include "check.h"
#include "digest.h"

namespace translate_trt::runtime {

inline std::uint64_t read_bits(const Tensor& tensor, std::size_t index) {
  if (size_of(tensor.type()) == 2) return tensor.row<std::uint16_t>()[index];
  return tensor.row<std::uint32_t>()[index];
}

inline void write_bits(const Tensor& tensor, std::size_t index, std::uint64_t bits) {
  if (size_of(tensor.type()) == 2) {
    tensor.row<std::uint16_t>()[index] = static_cast<std::uint16_t>(bits);
  } else {
    tensor.row<std::uint32_t>()[index] = static_cast<std::uint32_t>(bits);
  }
}

// A log of the graphs of a batch, for tests.
struct GraphLog {
  std::vector<std::vector<std::int64_t>> encoded;     // N and S of each call
  std::vector<std::weak_ptr<Tensor>> bound;           // arrays of the last call of `bind`
  std::int64_t binds = 0;                             // number of calls of `bind`
  std::set<std::int64_t> nan_rows;                    // rows of sentences of `kNanSource`
  Arrays inputs;                                      // inputs of the last step, if `keep_inputs`
  bool keep_inputs = true;                            // false: only the batch owns its arrays
  std::function<void(const Arrays& inputs)> on_step;  // called before each step
};

class DigestGraphs : public Graphs {
 public:
  DigestGraphs(const Contract& contract, GraphLog& log)
      : contract_(contract),
        encoder_outputs_(vectors(contract.encoder_outputs)),
        caches_(contract.caches()),
        recurrent_(recurrent(contract)),
        log_(log) {}

  void encode(const Arrays& inputs, const Arrays& outputs) override {
    const Tensor& ids = *inputs.at("source_ids");
    const std::int64_t columns = ids.axis(1);
    log_.encoded.push_back(ids.shape());
    for (std::int64_t row = 0; row < ids.axis(0); ++row) {
      const std::int64_t length = inputs.at("source_lengths")->row<std::int64_t>(row)[0];
      const auto* first = ids.row<std::int64_t>(row);
      const Tokens source(first, first + length);
      if (source[0] == kNanSource) {
        for (const TensorSpec& spec : encoder_outputs_) fill_nan(*outputs.at(spec.name), row);
      }
      for (std::int64_t place = 0; place < columns; ++place) {
        const bool is_there = place < length;
        CHECK(first[place] > 0);  // padding must also be a valid id
        outputs.at("source_bias")->row<float>(row)[place] = is_there ? 0 : kMasked;
        if (source[0] == kNanSource) continue;
        write_vectors(encoder_outputs_, outputs, row, place,
                      is_there ? std::optional(of_source(source, place)) : std::nullopt);
      }
      if (!contract_.shortlist) continue;
      const Tensor& shortlist = *outputs.at("shortlist");
      std::fill_n(shortlist.row<std::int64_t>(row), shortlist.row_size(), kEmpty);
      const Tokens listed = shortlist_of(source, *contract_.shortlist);
      std::copy(listed.begin(), listed.end(), shortlist.row<std::int64_t>(row));
    }
  }

  std::function<void()> bind(const Arrays& inputs, const Arrays& outputs) override {
    ++log_.binds;
    log_.bound.clear();
    for (const Arrays* arrays : {&inputs, &outputs}) {
      for (const auto& [name, array] : *arrays) log_.bound.push_back(array);
    }
    return [this, inputs, outputs] {
      if (log_.keep_inputs) log_.inputs = inputs;
      if (log_.on_step) log_.on_step(inputs);
      const Step step{contract_, encoder_outputs_, caches_,      recurrent_,
                      inputs,    outputs,          log_.nan_rows};
      step.check_arrays();
      for (std::int64_t row = 0; row < inputs.at("tokens")->axis(0); ++row) step.run(row);
    };
  }

 private:
  // Writes the vectors of a position of a row, or padding.
  static void write_vectors(const Specs& specs, const Arrays& arrays, std::int64_t row,
                            std::int64_t place, const std::optional<Digest>& of_token) {
    for (const TensorSpec& spec : specs) {
      const Tensor& tensor = *arrays.at(spec.name);
      const Digest of_vector = of_token.value_or(Digest()).add(spec.name);
      for (std::int64_t head = 0; head < tensor.axis(1); ++head) {
        for (std::int64_t column = 0; column < tensor.axis(3); ++column) {
          write_bits(tensor, index(tensor, row, head, place, column),
                     of_token ? element(of_vector, head, column) : kPadding);
        }
      }
    }
  }

  static void fill_nan(const Tensor& tensor, std::int64_t row) {
    const std::size_t size = tensor.row_size(), first = static_cast<std::size_t>(row) * size;
    for (std::size_t i = first; i < first + size; ++i) {
      write_bits(tensor, i, finite_limit(tensor.type()) | 0x7FC0);
    }
  }

  static void add_vectors(Digest& digest, const Specs& specs, const Arrays& arrays,
                          std::int64_t row, std::int64_t place) {
    for (const TensorSpec& spec : specs) {
      const Tensor& tensor = *arrays.at(spec.name);
      for (std::int64_t head = 0; head < tensor.axis(1); ++head) {
        for (std::int64_t column = 0; column < tensor.axis(3); ++column) {
          digest.add(read_bits(tensor, index(tensor, row, head, place, column)));
        }
      }
    }
  }

  static std::size_t index(const Tensor& tensor, std::int64_t row, std::int64_t head,
                           std::int64_t place, std::int64_t column) {
    return static_cast<std::size_t>(
        ((row * tensor.axis(1) + head) * tensor.axis(2) + place) * tensor.axis(3) + column);
  }

  // A run of the step graph.
  struct Step {
    const Contract& contract;
    const Specs &crossing, &caches, &recurrent;
    const Arrays &inputs, &outputs;
    const std::set<std::int64_t>& nan_rows;

    template <class T>
    T* in(const char* name, std::int64_t row) const {
      return inputs.at(name)->row<T>(row);
    }
    template <class T>
    T* out(const std::string& name, std::int64_t row) const {
      return outputs.at(name)->row<T>(row);
    }
    template <class T>
    std::vector<T> values(const char* name, std::int64_t row) const {
      return {in<T>(name, row), in<T>(name, row) + inputs.at(name)->row_size()};
    }

    // Arrays must have the sizes of the contract, masked values must be finite, and only caches may
    // be updated in place.
    void check_arrays() const {
      const Sizes sizes =
          contract.with_source({inputs.at("tokens")->axis(0), inputs.at("tokens")->axis(1), 0,
                                caches.empty() ? 0 : inputs.at("ancestry")->axis(2)},
                               inputs.at("source_bias")->axis(3));
      for (const TensorSpec& spec : contract.step_inputs()) {
        CHECK(inputs.at(spec.name)->shape() == spec.sized(sizes));
        CHECK(inputs.at(spec.name)->type() == spec.type);
      }
      for (const TensorSpec& spec : contract.step_outputs()) {
        CHECK(outputs.at(spec.name)->shape() == spec.sized(sizes));
      }
      for (const TensorSpec& spec : contract.state) {
        const bool in_place = inputs.at(spec.name) == outputs.at(kNext + spec.name);
        CHECK(in_place == (spec.axes.size() == 4));
      }
      for (const TensorSpec& spec : vectors(contract.step_inputs())) {
        const Tensor& tensor = *inputs.at(spec.name);
        // Memory of a recurrent state, which has other values, serves vectors of its type later.
        const std::uint64_t limit = finite_limit(spec.type);
        for (std::int64_t row = 0; row < tensor.axis(0); ++row) {
          if (nan_rows.count(row) > 0 || in<char>("done", row)[0] != 0) continue;
          bool is_finite = true;
          for (std::size_t i = 0; i < tensor.row_size(); ++i) {
            const std::uint64_t bits =
                read_bits(tensor, static_cast<std::size_t>(row) * tensor.row_size() + i);
            is_finite = is_finite && (bits & 0x7FFFFFFF) < limit;
          }
          CHECK(is_finite);
        }
      }
    }

    void run(std::int64_t row) const {
      for (const TensorSpec& spec : contract.state) {
        const Tensor &from = *inputs.at(spec.name), &to = *outputs.at(kNext + spec.name);
        const std::size_t size = from.row_size() * size_of(from.type());
        if (spec.axes.size() != 4) std::memcpy(to.bytes_at(row), from.bytes_at(row), size);
      }
      if (in<char>("done", row)[0] != 0) {
        idle(row);
      } else if (nan_rows.count(row) > 0) {
        spread_nan(row);
      } else {
        advance(row);
      }
    }

    // The contents of idle rows must not matter.
    void idle(std::int64_t row) const {
      write_vectors(caches, inputs, row, 0, std::nullopt);
      for (const TensorSpec& spec : recurrent) {
        std::fill_n(out<float>(kNext + spec.name, row), outputs.at(kNext + spec.name)->row_size(),
                    1e30f);
      }
      if (!contract.slots()) out<char>("full", row)[0] = 1;
    }

    // What was NaN in a row becomes all that it stores.
    void spread_nan(std::int64_t row) const {
      for (const TensorSpec& spec : caches) fill_nan(*inputs.at(spec.name), row);
      for (const TensorSpec& spec : recurrent) fill_nan(*outputs.at(kNext + spec.name), row);
      std::fill_n(out<float>("next_log_probs", row), inputs.at("tokens")->axis(1),
                  std::numeric_limits<float>::quiet_NaN());
      const std::int64_t position = ++out<std::int64_t>("next_positions", row)[0];
      out<char>("next_done", row)[0] = position >= in<std::int64_t>("max_lengths", row)[0];
      if (!caches.empty() && !contract.slots()) out<char>("full", row)[0] = 0;
    }

    void advance(std::int64_t row) const {
      const std::int64_t k = inputs.at("tokens")->axis(1);
      const std::int64_t slots = caches.empty() ? 0 : inputs.at("ancestry")->axis(2);
      DigestState state = {
          values<std::int64_t>("tokens", row),
          values<float>("log_probs", row),
          in<std::int64_t>("positions", row)[0],
          false,
          {values<float>("finished_scores", row), values<std::int64_t>("finished_lengths", row),
           values<std::int64_t>("finished_parents", row), values<char>("finished_truncated", row)}};
      Digest common = digest_of(
          state,
          {in<std::int64_t>("forced_tokens", row)[0], in<std::int64_t>("min_lengths", row)[0],
           in<std::int64_t>("max_lengths", row)[0], in<std::int64_t>("num_hypotheses", row)[0],
           std::int64_t{in<char>("early_stopping", row)[0]}},
          {in<float>("length_penalty_alpha", row)[0], in<float>("length_penalty_beta", row)[0]},
          shortlist(row));
      add_visible(common, crossing, row, values<float>("source_bias", row));
      std::vector<Digest> beams;
      std::vector<std::vector<float>> ancestry;
      for (std::int64_t beam = 0; beam < k; ++beam) {
        if (caches.empty()) {
          Digest digest = common;
          for (const TensorSpec& spec : recurrent) {
            const std::int64_t size = spec.axes[2];
            const float* own = in<float>(spec.name.c_str(), row) + beam * size;
            digest.add(std::vector<float>(own, own + size));
          }
          beams.push_back(digest);
          if (contract.attention()) attend(row, beam, digest);
          continue;
        }
        const std::int64_t slot =
            contract.slots() ? state.position * k + beam : in<std::int64_t>("slots", row)[beam];
        CHECK(slot >= 0 && slot < slots);
        const auto token = static_cast<std::uint64_t>(state.tokens[static_cast<std::size_t>(beam)]);
        write_vectors(caches, inputs, row, slot, Digest(common).add(token));
        const float* own = in<float>("ancestry", row) + beam * slots;
        ancestry.emplace_back(own, own + slots);
        CHECK(ancestry.back()[static_cast<std::size_t>(slot)] == kMasked);
        ancestry.back()[static_cast<std::size_t>(slot)] = 0;
        Digest digest = common;
        add_visible(digest, caches, row, ancestry.back());
        beams.push_back(digest);
        if (contract.attention()) attend(row, beam, digest);
      }
      const std::vector<std::int64_t> parents = choose(
          state, beams, in<std::int64_t>("min_lengths", row)[0],
          in<std::int64_t>("max_lengths", row)[0], in<std::int64_t>("forced_tokens", row)[0]);
      write(row, state, parents);
      for (const TensorSpec& spec : recurrent) {
        float* next = out<float>(kNext + spec.name, row);
        for (const std::int64_t parent : parents) {
          for (std::int64_t i = 0; i < spec.axes[2]; ++i) {
            *next++ = recurrent_element(beams[static_cast<std::size_t>(parent)], spec.name,
                                        static_cast<std::size_t>(i));
          }
        }
      }
      if (caches.empty()) return;
      for (std::int64_t beam = 0; beam < k; ++beam) {
        const auto& own =
            ancestry[static_cast<std::size_t>(parents[static_cast<std::size_t>(beam)])];
        std::copy(own.begin(), own.end(), out<float>("next_ancestry", row) + beam * slots);
      }
      if (!contract.slots()) find_slots(row, k, slots);
    }

    Tokens shortlist(std::int64_t row) const {
      if (!contract.shortlist) return {};
      Tokens listed = values<std::int64_t>("shortlist", row);
      listed.erase(std::remove(listed.begin(), listed.end(), kEmpty), listed.end());
      return listed;
    }

    void add_visible(Digest& digest, const Specs& specs, std::int64_t row,
                     const std::vector<float>& bias) const {
      for (std::size_t place = 0; place < bias.size(); ++place) {
        CHECK(bias[place] == 0 || bias[place] == kMasked);
        if (bias[place] != 0) continue;
        digest.add(std::uint64_t{place});
        add_vectors(digest, specs, inputs, row, static_cast<std::int64_t>(place));
      }
    }

    void attend(std::int64_t row, std::int64_t beam, const Digest& digest) const {
      const std::int64_t columns = outputs.at("attention")->axis(2);
      for (std::int64_t place = 0; place < columns; ++place) {
        out<float>("attention", row)[beam * columns + place] = attention_to(digest, place);
      }
    }

    void write(std::int64_t row, const DigestState& state,
               const std::vector<std::int64_t>& parents) const {
      const auto copy = [&](const char* name, const auto& from) {
        using Value = typename std::decay_t<decltype(from)>::value_type;
        std::copy(from.begin(), from.end(), out<Value>(name, row));
      };
      copy("parents", parents);
      copy("next_tokens", state.tokens);
      copy("next_log_probs", state.log_probs);
      copy("next_finished_scores", state.pool.scores);
      copy("next_finished_lengths", state.pool.lengths);
      copy("next_finished_parents", state.pool.parents);
      copy("next_finished_truncated", state.pool.truncated);
      out<std::int64_t>("next_positions", row)[0] = state.position;
      out<char>("next_done", row)[0] = state.done;
    }

    // The lowest slots that no beam attends to.
    void find_slots(std::int64_t row, std::int64_t k, std::int64_t slots) const {
      const float* ancestry = out<float>("next_ancestry", row);
      Rows free;
      for (std::int64_t slot = 0; slot < slots; ++slot) {
        bool is_free = true;
        for (std::int64_t beam = 0; beam < k; ++beam) {
          is_free = is_free && ancestry[beam * slots + slot] != 0;
        }
        if (is_free) free.push_back(slot);
      }
      out<char>("full", row)[0] = static_cast<std::int64_t>(free.size()) < k;
      free.resize(static_cast<std::size_t>(k));  // zeros if there are too few
      std::copy(free.begin(), free.end(), out<std::int64_t>("next_slots", row));
    }
  };

  Contract contract_;
  Specs encoder_outputs_, caches_, recurrent_;
  GraphLog& log_;
};

}  // namespace translate_trt::runtime
