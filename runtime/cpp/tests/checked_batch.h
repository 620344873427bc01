// A host batch whose steps are compared with a reference for every sentence.
#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "backends/host_batch.h"
#include "check.h"
#include "device_graphs.h"
#include "digest.h"
#include "digest_graphs.h"

namespace translate_trt::runtime {

// Reference for one sentence: slots are unlimited, and rows never move.
class ReferenceSentence {
 public:
  ReferenceSentence(const Contract& contract, Tokens source, const SearchOptions& options,
                    std::int64_t max_length, Tokens prefix, std::int64_t start_token)
      : contract_(contract),
        encoder_outputs_(vectors(contract.encoder_outputs)),
        caches_(contract.caches()),
        recurrent_(recurrent(contract)),
        source_(std::move(source)),
        options_(options),
        max_length_(max_length),
        prefix_(std::move(prefix)),
        past_(static_cast<std::size_t>(options.beam_size)) {
    for (const TensorSpec& spec : recurrent_) {
      hidden_[spec.name].assign(past_.size(),
                                std::vector<float>(static_cast<std::size_t>(spec.axes[2]), 0));
    }
    const std::size_t k = past_.size();
    const float impossible = -std::numeric_limits<float>::infinity();
    state_.tokens.assign(k, start_token);
    state_.log_probs.assign(k, impossible);
    state_.log_probs[0] = 0;
    state_.pool = {std::vector<float>(k, impossible), Rows(k, 0), Rows(k, 0),
                   std::vector<char>(k, false)};
  }

  const Tokens& source() const { return source_; }
  const DigestState& state() const { return state_; }
  const std::vector<std::int64_t>& parents() const { return parents_; }
  const std::vector<float>& attention() const { return attention_; }  // [K, source]
  const std::map<std::int64_t, Digest>& slots() const {
    return slots_;
  }  // all slots that were written

  // The forced token of the next step.
  std::int64_t forced() const {
    const auto position = static_cast<std::size_t>(state_.position);
    return position < prefix_.size() ? prefix_[position] : kFree;
  }

  void drop(std::int64_t beam) {
    state_.log_probs[static_cast<std::size_t>(beam)] = -std::numeric_limits<float>::infinity();
  }

  bool is_nan() const { return source_[0] == kNanSource; }

  void step() {
    if (is_nan()) {
      state_.done = ++state_.position >= max_length_;
      return;
    }
    Digest common =
        digest_of(state_,
                  {forced(), options_.min_length, max_length_, options_.num_hypotheses,
                   options_.early_stopping},
                  {static_cast<float>(options_.length_penalty),
                   static_cast<float>(options_.length_penalty_beta())},
                  contract_.shortlist ? shortlist_of(source_, *contract_.shortlist) : Tokens());
    for (std::size_t place = 0; place < source_.size(); ++place) {
      common.add(std::uint64_t{place});
      add(common, encoder_outputs_, of_source(source_, static_cast<std::int64_t>(place)));
    }
    const std::vector<std::int64_t> slots = caches_.empty() ? Rows() : next_slots();
    std::vector<Digest> beams;
    attention_.clear();
    for (std::size_t beam = 0; beam < past_.size(); ++beam) {
      Digest digest = common;
      for (const TensorSpec& spec : recurrent_) digest.add(hidden_.at(spec.name)[beam]);
      if (!caches_.empty()) {
        slots_[slots[beam]] = Digest(common).add(static_cast<std::uint64_t>(state_.tokens[beam]));
        past_[beam].insert(slots[beam]);
      }
      for (const std::int64_t slot : past_[beam]) {
        digest.add(static_cast<std::uint64_t>(slot));
        add(digest, caches_, slots_.at(slot));
      }
      beams.push_back(digest);
      for (std::size_t place = 0; place < source_.size(); ++place) {
        attention_.push_back(attention_to(digest, static_cast<std::int64_t>(place)));
      }
    }
    parents_ = choose(state_, beams, options_.min_length, max_length_, forced());
    std::vector<std::set<std::int64_t>> past;
    for (const std::int64_t parent : parents_) {
      past.push_back(past_[static_cast<std::size_t>(parent)]);
    }
    past_ = std::move(past);
    for (auto& [name, vectors] : hidden_) {
      for (std::size_t beam = 0; beam < parents_.size(); ++beam) {
        const Digest& parent = beams[static_cast<std::size_t>(parents_[beam])];
        for (std::size_t i = 0; i < vectors[beam].size(); ++i) {
          vectors[beam][i] = recurrent_element(parent, name, i);
        }
      }
    }
  }

 private:
  std::vector<std::int64_t> next_slots() const {
    const auto k = static_cast<std::int64_t>(past_.size());
    std::vector<std::int64_t> found;
    for (std::int64_t slot = contract_.slots() ? state_.position * k : 0;
         static_cast<std::int64_t>(found.size()) < k; ++slot) {
      const auto has = [slot](const auto& past) { return past.count(slot) > 0; };
      if (std::none_of(past_.begin(), past_.end(), has)) found.push_back(slot);
    }
    return found;
  }

  static void add(Digest& digest, const Specs& specs, const Digest& of_token) {
    for (const TensorSpec& spec : specs) {
      const Digest of_vector = Digest(of_token).add(spec.name);
      for (std::int64_t head = 0; head < spec.axes[1]; ++head) {
        for (std::int64_t column = 0; column < spec.axes[3]; ++column) {
          digest.add(element(of_vector, head, column));
        }
      }
    }
  }

  Contract contract_;
  Specs encoder_outputs_, caches_, recurrent_;
  Tokens source_;
  SearchOptions options_;
  std::int64_t max_length_;
  Tokens prefix_;
  DigestState state_;
  std::vector<std::set<std::int64_t>> past_;  // by beam, the slots of its tokens
  std::map<std::int64_t, Digest> slots_;
  std::map<std::string, std::vector<std::vector<float>>> hidden_;  // recurrent state by beam
  std::vector<std::int64_t> parents_;
  std::vector<float> attention_;
};

// Sentences that a test admits to a batch.
struct Arrival {
  Tokens source;
  std::int64_t max_length = 90;
  Tokens prefix = {};  // forced first tokens
  SearchOptions options = {};
};

class CheckedBatch {
 public:
  static constexpr std::int64_t kStart = 2;

  // options: beam size, attention, and options of the sentences that `arrivals` creates.
  CheckedBatch(const Contract& contract, const SearchOptions& options, std::int64_t spare_slots = 0,
               Place place = Place::kHost, std::int64_t max_source = 0)
      : contract_(contract),
        options_(options),
        batch_(placed(std::make_unique<DigestGraphs>(contract, log), place), contract, options,
               kStart, array_place(place, spare_slots, max_source)) {}

  // Creates sentences with these numbers of tokens, all different.
  std::vector<Arrival> arrivals(const std::vector<std::size_t>& sizes,
                                std::int64_t max_length = 90) {
    std::vector<Arrival> made;
    for (const std::size_t size : sizes) {
      Arrival arrival = {{}, max_length, {}, options_};
      const Digest own = Digest().add(++arrived_);
      for (std::size_t place = 0; place < size; ++place) {
        arrival.source.push_back(static_cast<std::int64_t>(3 + own.below(30000, place)));
      }
      made.push_back(arrival);
    }
    return made;
  }

  std::pair<Rows, Rows> update(const Rows& keep, const std::vector<Arrival>& arriving) {
    Sources sources;
    for (const Arrival& one : arriving) {
      sources.tokens.push_back(one.source);
      sources.max_lengths.push_back(one.max_length);
      sources.options.push_back(&one.options);
    }
    auto [kept, placed] = batch_.update(keep, sources);
    std::map<std::int64_t, ReferenceSentence> rows;
    CHECK(kept.size() == keep.size() && placed.size() == arriving.size());
    for (std::size_t i = 0; i < kept.size(); ++i) rows.emplace(kept[i], sentences_.at(keep[i]));
    for (std::size_t i = 0; i < placed.size(); ++i) {
      const Arrival& one = arriving[i];
      rows.emplace(placed[i], ReferenceSentence(contract_, one.source, one.options, one.max_length,
                                                one.prefix, kStart));
    }
    CHECK(rows.size() == keep.size() + arriving.size());  // rows are distinct
    CHECK(rows.empty() || (rows.begin()->first >= 0 && rows.rbegin()->first < batch_.rows()));
    sentences_ = std::move(rows);
    log.nan_rows.clear();
    for (const auto& [row, sentence] : sentences_) {
      if (sentence.is_nan()) log.nan_rows.insert(row);
    }
    return {kept, placed};
  }

  // Retires an unfinished sentence.
  void retire(std::int64_t row) {
    batch_.retire(row);
    sentences_.erase(row);
  }

  // Drops a beam of an unfinished sentence.
  void drop(std::int64_t row, std::int64_t beam) {
    batch_.drop(row, beam);
    sentences_.at(row).drop(beam);
  }

  // Runs that many steps.
  const StepResult& step(int count = 1) {
    const StepResult* result = nullptr;
    for (int i = 0; i < count; ++i) {
      result = &batch_.step({forced()}).front();
      CHECK(static_cast<std::int64_t>(result->done.size()) == batch_.rows());
      for (std::int64_t row = 0; row < batch_.rows(); ++row) compare(*result, row);
    }
    return *result;
  }

  // Rows of unfinished sentences.
  Rows live() const {
    Rows found;
    for (const auto& [row, sentence] : sentences_) {
      if (!sentence.state().done) found.push_back(row);
    }
    return found;
  }

  std::int64_t rows() const { return batch_.rows(); }
  const ReferenceSentence& sentence(std::int64_t row) const { return sentences_.at(row); }

  // S and P of the arrays of the last step.
  std::int64_t source_size() const { return log.inputs.at("source_bias")->axis(3); }
  std::int64_t slots() const { return log.inputs.at("ancestry")->axis(2); }

  GraphLog log;

 private:
  // Forced tokens; empty if all rows are free, as in `Search`.
  std::vector<std::int64_t> forced() const {
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(batch_.rows()), kFree);
    for (const auto& [row, sentence] : sentences_) {
      tokens[static_cast<std::size_t>(row)] = sentence.forced();
    }
    const auto is_free = [](std::int64_t token) { return token == kFree; };
    if (std::all_of(tokens.begin(), tokens.end(), is_free)) tokens.clear();
    return tokens;
  }

  void compare(const StepResult& result, std::int64_t row) {
    const auto entry = sentences_.find(row);
    const bool is_done = result.done[static_cast<std::size_t>(row)] != 0;
    if (entry == sentences_.end()) {
      CHECK(is_done);  // idle
      return;
    }
    ReferenceSentence& sentence = entry->second;
    const bool was_done = sentence.state().done;
    if (was_done) {
      CHECK(is_done);
    } else {
      sentence.step();
      CHECK(is_done == sentence.state().done);
    }
    if (sentence.is_nan()) return;
    if (!was_done) {
      CHECK(values(result.tokens, row) == sentence.state().tokens);
      CHECK(values(result.parents, row) == sentence.parents());
      CHECK(values(result.log_probs, row) == sentence.state().log_probs);
      if (contract_.attention()) compare_attention(result, row, sentence);
    }
    const Pool pool = batch_.pool(row);
    CHECK(pool.scores == sentence.state().pool.scores);
    CHECK(pool.lengths == sentence.state().pool.lengths);
    CHECK(pool.parents == sentence.state().pool.parents);
    CHECK(pool.truncated == sentence.state().pool.truncated);
  }

  void compare_attention(const StepResult& result, std::int64_t row,
                         const ReferenceSentence& sentence) const {
    const auto columns = static_cast<std::int64_t>(sentence.source().size());
    std::vector<float> found;
    for (std::int64_t beam = 0; beam < options_.beam_size; ++beam) {
      const auto first =
          result.attention.begin() + (row * options_.beam_size + beam) * result.source_size;
      found.insert(found.end(), first, first + columns);
    }
    CHECK(found == sentence.attention());
  }

  template <class T>
  std::vector<T> values(const std::vector<T>& all, std::int64_t row) const {
    const auto first = all.begin() + row * options_.beam_size;
    return {first, first + options_.beam_size};
  }

  Contract contract_;
  SearchOptions options_;
  HostBatch batch_;
  std::uint64_t arrived_ = 0;
  std::map<std::int64_t, ReferenceSentence> sentences_;
};

}  // namespace translate_trt::runtime
