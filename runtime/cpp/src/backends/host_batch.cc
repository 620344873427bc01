#include "backends/host_batch.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "backends/initial_state.h"
#include "base/platform.h"

namespace translate_trt::runtime {

namespace {

// Source lengths are padded to a multiple of this, so that sentences of similar length can reuse
// the same arrays.
constexpr std::int64_t kSourceStep = 8;
// Caches have a multiple of this number of slots, which suits the matmuls.
constexpr std::int64_t kSlotStep = 16;
// Spare slots of a cache on a CPU, so that caches seldom have to grow.
constexpr std::int64_t kSpareSlots = 64;
// Smallest buckets.
constexpr std::int64_t kMinSourceBucket = 16, kMinSlotBucket = 32;
// Maximum share of idle rows when new sentences reuse vacated rows. Beyond it the batch is copied
// to smaller arrays, which costs as much as several steps.
constexpr double kIdle = 0.25;

// Source tokens, padding included, per call of the encoder, whose activations are the peak memory
// of a batch. A GPU needs more of them to be busy.
constexpr std::size_t kEncoderTokens = 256, kEncoderTokensOfBuckets = 16384;

Rows counted(std::int64_t first, std::int64_t count) {
  Rows rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}

template <class T>
std::vector<T> copied(const Array& array) {
  return {array->row<T>(), array->row<T>() + array->size()};
}

template <class T>
void copy_into(std::vector<T>& values, const Tensor& tensor) {
  values.assign(tensor.row<T>(), tensor.row<T>() + tensor.size());
}

template <class T>
std::vector<T> copied_row(const Array& array, std::int64_t row) {
  return {array->row<T>(row), array->row<T>(row) + array->row_size()};
}

template <class T>
void fill_row(const Array& array, std::int64_t row, T value) {
  std::fill_n(array->row<T>(row), array->row_size(), value);
}

template <class T>
void fill(const Array& array, T value) {
  std::fill_n(array->row<T>(), array->size(), value);
}

bool has(const Specs& specs, const std::string& name) {
  return std::any_of(specs.begin(), specs.end(),
                     [&](const TensorSpec& one) { return one.name == name; });
}

Specs without(const Specs& specs, const Specs& others) {
  Specs left;
  for (const TensorSpec& spec : specs) {
    if (!has(others, spec.name)) left.push_back(spec);
  }
  return left;
}

// State of recurrent layers: vectors of the beams, which the host does not read.
Specs recurrent_state(const Contract& contract) {
  Specs specs;
  std::copy_if(contract.state.begin(), contract.state.end(), std::back_inserter(specs),
               [](const TensorSpec& spec) {
                 return !spec.in_place && spec.axes.size() > 2 && spec.name != "ancestry";
               });
  return specs;
}

// Numbers of consecutive sentences to encode together.
std::vector<std::size_t> encoder_groups(const std::vector<Tokens>& sentences, std::size_t most) {
  std::vector<std::size_t> counts;
  std::size_t widest = 0;
  for (const Tokens& tokens : sentences) {
    widest = std::max(widest, tokens.size());
    if (counts.empty() || widest * (counts.back() + 1) > most) {
      counts.push_back(0);
      widest = tokens.size();
    }
    ++counts.back();
  }
  return counts;
}

std::int64_t rounded_up(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step * step;
}

std::int64_t power_of_two(std::int64_t value, std::int64_t smallest) {
  while (smallest < value) smallest *= 2;
  return smallest;
}

}  // namespace

std::int64_t ArraySizes::rows(std::int64_t needed) const {
  return buckets && needed > 0 ? power_of_two(needed, 1) : needed;
}

std::int64_t ArraySizes::source(std::int64_t needed) const {
  if (!buckets) return rounded_up(needed, kSourceStep);
  const std::int64_t size = power_of_two(needed, kMinSourceBucket);
  return max_source >= needed ? std::min(size, max_source) : size;
}

std::int64_t ArraySizes::slots(std::int64_t needed) const {
  if (buckets) return power_of_two(needed + spare_slots, kMinSlotBucket);
  return rounded_up(needed + spare_slots, kSlotStep);
}

std::int64_t ArraySizes::most_source(std::int64_t needed) const {
  return buckets ? 2 * needed : needed + kSourceStep;
}

std::int64_t ArraySizes::most_slots(std::int64_t needed) const {
  return buckets ? 2 * slots(needed) : slots(needed) + kSlotStep;
}

ArrayPlace host_place(bool skips_hidden_slots) {
  return {nullptr, {skips_hidden_slots ? kSpareSlots : 0}};
}

void return_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

HostBatch::HostBatch(std::unique_ptr<Graphs> graphs, const Contract& contract,
                     const SearchOptions& options, std::int64_t start_token, ArrayPlace place)
    : graphs_(std::move(graphs)),
      contract_(contract),
      options_(options),
      start_token_(start_token),
      place_(std::move(place)),
      encoder_outputs_(contract.encoder_outputs),
      caches_(contract.caches()),
      recurrent_(recurrent_state(contract)),
      request_(contract.request),
      small_state_(without(without(contract.state, caches_), recurrent_)),
      swapped_(place_.in_place ? without(contract.state, caches_) : contract.state),
      slots_(contract.slots()),
      encoder_blocks_(std::make_shared<BlockPool>(place_.device)) {
  for (TensorSpec& spec : contract_.step_inputs()) {
    if (spec.by_sentence()) by_sentence_.push_back(std::move(spec));
  }
  sizes_.k = options.beam_size;
}

std::pair<Rows, Rows> HostBatch::update(const Rows& keep, const Sources& arriving) {
  if (mirror_) mirror_->receive_ancestry();
  Rows leaving;
  const Rows all = counted(0, sizes_.n);
  std::set_difference(all.begin(), all.end(), keep.begin(), keep.end(),
                      std::back_inserter(leaving));
  for (const TensorSpec& spec : by_sentence_) {
    for (const std::int64_t row : leaving) leave(spec, *now_.at(spec.name), row);
  }
  leave_others();
  auto rows = assign(keep, leaving, arriving);
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(sizes_.n));
  for (std::size_t i = 0; i < keep.size(); ++i) {
    lengths[static_cast<std::size_t>(rows.first[i])] = lengths_[static_cast<std::size_t>(keep[i])];
  }
  for (std::size_t i = 0; i < arriving.size(); ++i) {
    lengths[static_cast<std::size_t>(rows.second[i])] =
        static_cast<std::int64_t>(arriving.tokens[i].size());
  }
  lengths_ = std::move(lengths);
  if (!rows.second.empty()) start(rows.second, arriving);
  if (mirror_) mirror_->edited();
  nan_rows_.clear();  // the next step finds NaN in kept rows again
  return rows;
}

// Assigns rows to kept and new sentences: vacated rows, or rows of new arrays.
std::pair<Rows, Rows> HostBatch::assign(const Rows& keep, Rows leaving, const Sources& arriving) {
  const std::int64_t needed = source_size(keep, arriving);
  const auto kept = static_cast<std::int64_t>(keep.size());
  const auto added = static_cast<std::int64_t>(arriving.size());
  const std::int64_t rows = place_.sizes.rows(kept + added);
  const bool fits = needed <= sizes_.s && sizes_.s <= place_.sizes.most_source(needed);
  if (fits && arriving.size() <= leaving.size()) {
    const auto idle = static_cast<double>(leaving.size() - arriving.size());
    const bool few_idle = added > 0 && idle <= static_cast<double>(sizes_.n) * kIdle;
    if (few_idle || keeps_rows(rows, keep)) {
      for (std::size_t i = arriving.size(); i < leaving.size(); ++i) {
        fill_row(now_.at("done"), leaving[i], true);
      }
      leaving.resize(arriving.size());
      return {keep, leaving};
    }
  }
  Rows rows_now = counted(0, kept);
  if (can_shrink(keep, rows)) {
    rows_now = shrink(keep, rows, fits ? sizes_.s : needed);
    for (std::int64_t row = kept + added; row < rows; ++row) fill_row(now_.at("done"), row, true);
  } else {
    move(keep, rows, needed);
  }
  return {rows_now, counted(kept, added)};
}

// Whether new arrays would have the same number of rows and hardly fewer slots.
bool HostBatch::keeps_rows(std::int64_t rows, const Rows& keep) const {
  if (!place_.sizes.buckets || rows != sizes_.n) return false;
  return slots_ || sizes_.p <= place_.sizes.most_slots(max_used_slots(keep));
}

const StepResults& HostBatch::step(const StepInputs& inputs) {
  const std::vector<std::int64_t>& forced = inputs.forced;
  mark(inputs.marked);
  sample(inputs.noise);
  constrain(inputs.progress);
  const Array& tokens = now_.at("forced_tokens");
  if (mirror_ && (!forced.empty() || is_forced_)) mirror_->edited();
  is_forced_ = !forced.empty();
  if (forced.empty()) {
    fill(tokens, kFree);
  } else {
    std::copy(forced.begin(), forced.end(), tokens->row<std::int64_t>());
  }
  if (runs_.empty()) bind();
  const double start = thread_seconds();
  if (mirror_) {
    mirror_->send();
    place_.device->wait();
  }
  runs_[0]();
  graph_seconds_ += thread_seconds() - start;
  std::swap(runs_[0], runs_[1]);
  for (const TensorSpec& spec : swapped_) std::swap(now_.at(spec.name), other_.at(spec.name));
  if (mirror_) mirror_->receive();
  keep_result();
  grow_if_full();
  return result_;
}

// Writes the marked tokens of the next step.
void HostBatch::mark(const MarkedTokens& marked) {
  if (marked.count == 0 && sizes_.b == 0) return;
  resize(sizes_.b, marked.count, kB);
  std::copy(marked.tokens.begin(), marked.tokens.end(),
            now_.at(kMarkedTokens)->row<std::int64_t>());
  std::copy(marked.factors.begin(), marked.factors.end(), now_.at(kMarkedFactors)->row<float>());
  if (mirror_) mirror_->edited();
}

// Writes the noise of the next step.
void HostBatch::sample(const SamplingNoise& noise) {
  if (noise.count == 0 && sizes_.r == 0) return;
  resize(sizes_.r, noise.count, kR);
  resize(sizes_.d, noise.tail_count, kD);
  std::copy(noise.values.begin(), noise.values.end(), now_.at(kSamplingNoise)->row<float>());
  std::copy(noise.tail_tokens.begin(), noise.tail_tokens.end(),
            now_.at(kTailTokens)->row<std::int64_t>());
  std::copy(noise.tail_values.begin(), noise.tail_values.end(), now_.at(kTailNoise)->row<float>());
  if (mirror_) mirror_->edited();
}

// Writes the progress that hypotheses have made with constraints.
void HostBatch::constrain(const ConstraintProgress& progress) {
  if (progress.count == 0 && sizes_.u == 0) return;
  resize(sizes_.u, progress.count, kU);
  fill(now_.at(kOtherProgress), std::int64_t{0});
  const auto write = [&](const char* name, const std::vector<std::int64_t>& values) {
    std::copy(values.begin(), values.end(), now_.at(name)->row<std::int64_t>());
  };
  write(kConstraintTokens, progress.tokens);
  write(kConstraintProgress, progress.with_each);
  write(kOtherProgress, progress.with_other);
  if (mirror_) mirror_->edited();
}

// Changes a size of inputs of a step, which have the letter among their axes, and binds new arrays.
void HostBatch::resize(std::int64_t& size, std::int64_t wanted, Letter letter) {
  if (size == wanted) return;
  if (mirror_) mirror_->receive_ancestry();  // which only the arrays that are bound now have
  size = wanted;
  for (const TensorSpec& spec : request_) {
    if (std::find(spec.axes.begin(), spec.axes.end(), letter) != spec.axes.end()) {
      now_.at(spec.name) = make(spec);
    }
  }
  runs_.clear();
}

Pool HostBatch::pool(std::int64_t row) const {
  return {copied_row<float>(now_.at("finished_scores"), row),
          copied_row<std::int64_t>(now_.at("finished_lengths"), row),
          copied_row<std::int64_t>(now_.at("finished_parents"), row),
          copied_row<char>(now_.at("finished_truncated"), row)};
}

void HostBatch::retire(std::int64_t row) {
  fill_row(now_.at("done"), row, true);
  if (mirror_) mirror_->edited();
}

void HostBatch::drop(std::int64_t row, std::int64_t beam) {
  now_.at("log_probs")->row<float>(row)[beam] = -std::numeric_limits<float>::infinity();
  if (mirror_) mirror_->edited();
}

void HostBatch::keep_result() {
  StepResult& result = result_.front();
  copy_into(result.tokens, *now_.at("tokens"));
  copy_into(result.parents, *results_.at("parents"));
  copy_into(result.log_probs, *now_.at("log_probs"));
  copy_into(result.done, *now_.at("done"));
  if (options_.return_attention) copy_into(result.attention, *results_.at("attention"));
  result.source_size = sizes_.s;
  add_nan_rows(result, sizes_.k, nan_rows_);
}

// Clears a vacated row that holds NaN. Attention masks by multiplying with zero, and NaN times zero
// would be NaN for the next sentence in the row, or for an array in the same memory.
void HostBatch::leave(const TensorSpec& spec, const Tensor& array, std::int64_t row) const {
  if (nan_rows_.count(row) == 0 || !is_large(spec) || spec.name == "source_bias") return;
  array.clear(row);
}

// Clears rows of NaN in the copies of the state that only the next step writes. Their memory may
// serve other arrays.
void HostBatch::leave_others() const {
  if (nan_rows_.empty()) return;
  for (const TensorSpec& spec : swapped_) {
    const auto other = other_.find(spec.name);
    if (other == other_.end()) continue;
    for (const std::int64_t row : nan_rows_) leave(spec, *other->second, row);
  }
}

// Binds the step graph in both directions between the two copies of the state.
void HostBatch::bind() {
  runs_.clear();
  for (const TensorSpec& spec : swapped_) {
    if (!is_large(spec)) continue;
    Array& other = other_[spec.name];
    if (other == nullptr || other->shape() != now_.at(spec.name)->shape()) other = make(spec);
  }
  if (place_.device != nullptr) mirror_.emplace(place_.device, now_, other_, results_);
  const auto on_device = [&](Arrays arrays) {
    if (!mirror_) return arrays;
    for (auto& [name, array] : arrays) array = mirror_->on_device(array);
    return arrays;
  };
  for (const auto& [from, to] : {std::pair{&now_, &other_}, std::pair{&other_, &now_}}) {
    Arrays inputs = now_, outputs = results_;
    for (const TensorSpec& spec : swapped_) {
      inputs[spec.name] = from->at(spec.name);
      outputs[kNext + spec.name] = to->at(spec.name);
    }
    if (place_.in_place) {
      for (const TensorSpec& spec : caches_) outputs[kNext + spec.name] = now_.at(spec.name);
    }
    runs_.push_back(graphs_->bind(on_device(inputs), on_device(outputs)));
  }
}

// Allocates all arrays except the large ones for sizes_, with idle rows.
void HostBatch::allocate_small() {
  sizes_.b = sizes_.r = sizes_.d = sizes_.u = 0;
  now_.clear(), other_.clear(), results_.clear();
  for (const TensorSpec& spec : contract_.step_inputs()) {
    if (!is_large(spec)) now_[spec.name] = make(spec);
  }
  for (const TensorSpec& spec : small_state_) other_[spec.name] = make(spec);
  for (const TensorSpec& spec : contract_.step_outputs()) {
    const bool is_state = spec.name.rfind(kNext, 0) == 0;
    if (!is_state) results_[spec.name] = make(spec);
  }
  fill(now_.at("forced_tokens"), kFree);
  for (std::int64_t row = 0; row < sizes_.n; ++row) {
    reset(row);
    request(row, options_, 1);
  }
  fill(now_.at("done"), true);
}

bool HostBatch::is_source(const TensorSpec& spec) const { return has(encoder_outputs_, spec.name); }

bool HostBatch::is_recurrent(const TensorSpec& spec) const { return has(recurrent_, spec.name); }

bool HostBatch::is_large(const TensorSpec& spec) const {
  return spec.in_place || is_source(spec) || is_recurrent(spec);
}

// Creates an array of zeros, or a large array that reuses the contents of another of its type:
// masked values need only be finite. All source positions are masked, and
// shortlists are empty.
Array HostBatch::make(const TensorSpec& spec) {
  std::shared_ptr<BlockPool> blocks;
  if (is_large(spec)) {
    auto& shared = blocks_[spec.type];
    if (shared == nullptr) shared = std::make_shared<BlockPool>(place_.device);
    blocks = shared;
  }
  const auto array = std::make_shared<Tensor>(spec.type, spec.sized(sizes_), blocks);
  if (spec.name == "source_bias") {
    for (std::int64_t row = 0; row < sizes_.n; ++row) mask_source(*array, row);
  } else if (spec.name == "shortlist") {
    array->clear(0, sizes_.n);  // kEmpty; other values would allow the tokens of other sentences
  }
  return array;
}

// Masks all source positions of a row.
void HostBatch::mask_source(const Tensor& bias, std::int64_t row) const {
  if (bias.device() == nullptr) {
    std::fill_n(bias.row<float>(row), bias.row_size(), kMasked);
    return;
  }
  const std::vector<float> masked(bias.row_size(), kMasked);
  bias.device()->copy_in(bias.address(row), masked.data(), masked.size() * sizeof(float));
}

void HostBatch::request(std::int64_t row, const SearchOptions& options, std::int64_t max_length) {
  for (const TensorSpec& spec : request_) {
    write_request(spec, now_.at(spec.name)->bytes_at(row), options, max_length);
  }
}

void HostBatch::reset(std::int64_t row) {
  for (const TensorSpec& spec : small_state_) {
    const Tensor& tensor = *now_.at(spec.name);
    write_initial(spec, tensor.bytes_at(row), tensor.row_size(), start_token_);
  }
}

// Padded source length for the longest of the kept and new sentences.
std::int64_t HostBatch::source_size(const Rows& keep, const Sources& arriving) const {
  std::int64_t longest = 0;
  for (const Tokens& tokens : arriving.tokens) {
    longest = std::max(longest, static_cast<std::int64_t>(tokens.size()));
  }
  for (const std::int64_t row : keep) {
    longest = std::max(longest, lengths_[static_cast<std::size_t>(row)]);
  }
  // A single sentence never shares its arrays.
  if (!place_.sizes.buckets && keep.size() + arriving.size() == 1) return longest;
  return place_.sizes.source(longest);
}

// Encodes sentences into rows and resets the state of the rows.
void HostBatch::start(const Rows& rows, const Sources& arriving) {
  std::size_t first = 0;
  const std::size_t most = place_.sizes.buckets ? kEncoderTokensOfBuckets : kEncoderTokens;
  for (const std::size_t count : encoder_groups(arriving.tokens, most)) {
    encode(rows, arriving, first, count);
    first += count;
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    reset(rows[i]);
    for (const TensorSpec& spec : recurrent_) now_.at(spec.name)->clear(rows[i]);
    request(rows[i], *arriving.options[i], arriving.max_lengths[i]);
  }
}

// Encodes `count` sentences, directly into their rows if these are contiguous and as wide.
void HostBatch::encode(const Rows& rows, const Sources& arriving, std::size_t first,
                       std::size_t count) {
  std::size_t longest = 0;
  for (std::size_t i = 0; i < count; ++i) {
    longest = std::max(longest, arriving.tokens[first + i].size());
  }
  const std::int64_t width = place_.sizes.buckets
                                 ? place_.sizes.source(static_cast<std::int64_t>(longest))
                                 : static_cast<std::int64_t>(longest);
  Sizes sizes = contract_.with_source(sizes_, width);
  sizes.n = place_.sizes.rows(static_cast<std::int64_t>(count));
  const auto ids = std::make_shared<Tensor>(Type::kInt64, std::vector{sizes.n, sizes.s});
  const auto lengths = std::make_shared<Tensor>(Type::kInt64, std::vector{sizes.n});
  fill(ids, arriving.tokens[first].back());  // pad with any valid id
  fill(lengths, std::int64_t{1});            // of rows that pad the bucket
  for (std::size_t i = 0; i < count; ++i) {
    const Tokens& tokens = arriving.tokens[first + i];
    const auto row = static_cast<std::int64_t>(i);
    std::copy(tokens.begin(), tokens.end(), ids->row<std::int64_t>(row));
    lengths->row<std::int64_t>(row)[0] = static_cast<std::int64_t>(tokens.size());
  }
  const std::int64_t begin = rows[first], last = rows[first + count - 1];
  const auto encoded_rows = static_cast<std::int64_t>(count);  // without those that pad a bucket
  const bool in_place = sizes.s == sizes_.s && sizes.n == encoded_rows &&
                        last - begin + 1 == encoded_rows;  // rows ascend
  Arrays encoded;
  for (const TensorSpec& spec : encoder_outputs_) {
    encoded[spec.name] =
        in_place ? std::make_shared<Tensor>(now_.at(spec.name), begin, sizes.n)
                 : std::make_shared<Tensor>(spec.type, spec.sized(sizes), encoder_blocks_);
  }
  const double start = thread_seconds();
  if (place_.device != nullptr) place_.device->wait();
  graphs_->encode({{"source_ids", ids}, {"source_lengths", lengths}}, encoded);
  graph_seconds_ += thread_seconds() - start;
  if (in_place) return;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t row = rows[first + i];
    mask_source(*now_.at("source_bias"), row);
    if (contract_.shortlist) now_.at("shortlist")->clear(row);  // kEmpty
    for (const TensorSpec& spec : encoder_outputs_) {
      copy_source(spec, *encoded.at(spec.name), static_cast<std::int64_t>(i), *now_.at(spec.name),
                  row, sizes.s);
    }
  }
}

void HostBatch::grow_if_full() {
  if (slots_) return;
  std::vector<char> full = copied<char>(results_.at("full"));
  bool any = false;
  for (std::size_t row = 0; row < full.size(); ++row) {
    full[row] = full[row] && !result_.front().done[row];
    any = any || full[row];
  }
  if (any) grow(full);
}

// Enlarges the caches. Full rows continue in their lowest free slots, which a step would have
// chosen had the caches been larger before.
void HostBatch::grow(const std::vector<char>& full) {
  const std::int64_t old = sizes_.p;
  if (mirror_) mirror_->receive_ancestry();
  sizes_.p = place_.sizes.slots(old + sizes_.k);
  runs_.clear();
  leave_others();
  for (const TensorSpec& spec : caches_) other_.erase(spec.name);  // `bind` makes others
  const auto copy = [&](const TensorSpec& spec, Array& array) {
    const Array grown = make(spec);
    const std::int64_t columns = spec.axes.size() > 3 ? grown->axis(3) : 1;
    const std::size_t slot = size_of(spec.type) * static_cast<std::size_t>(columns);
    const auto past = static_cast<std::size_t>(old) * slot;
    const auto whole = static_cast<std::size_t>(sizes_.p) * slot;
    const auto blocks = static_cast<std::size_t>(grown->axis(0) * grown->axis(1));
    copy_blocks(*grown, {grown->address(), whole}, *array, {array->address(), past}, past, blocks);
    for (const std::int64_t row : nan_rows_) leave(spec, *array, row);
    array = grown;
  };
  for (const TensorSpec& spec : caches_) copy(spec, now_.at(spec.name));
  for (const TensorSpec& spec : small_state_) {
    if (spec.name != "ancestry") continue;
    Array& ancestry = now_.at(spec.name);
    copy(spec, ancestry);
    for (std::int64_t beam = 0; beam < sizes_.n * sizes_.k; ++beam) {
      float* slots = ancestry->row<float>() + beam * sizes_.p;
      std::fill(slots + old, slots + sizes_.p, kMasked);
    }
    other_.at(spec.name) = std::make_shared<Tensor>(spec.type, spec.sized(sizes_));
  }
  for (std::int64_t row = 0; row < sizes_.n; ++row) {
    if (!full[static_cast<std::size_t>(row)]) continue;
    const float* ancestry = now_.at("ancestry")->row<float>(row);
    std::int64_t* next = now_.at("slots")->row<std::int64_t>(row);
    for (std::int64_t slot = 0, found = 0; found < sizes_.k; ++slot) {
      bool is_free = true;
      for (std::int64_t beam = 0; beam < sizes_.k; ++beam) {
        is_free = is_free && ancestry[beam * sizes_.p + slot] != 0;
      }
      if (is_free) next[found++] = slot;
    }
  }
}

}  // namespace translate_trt::runtime
