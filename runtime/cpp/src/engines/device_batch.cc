#include "engines/device_batch.h"

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "backends/initial_state.h"
#include "base/errors.h"

namespace translate_trt::runtime {

namespace {

// Sources are padded to a multiple of this, so that the encoder runs with few shapes: TensorRT-RTX
// compiles kernels for each shape.
constexpr std::int64_t kEncoderStep = 8;

// A run of consecutive rows.
struct Run {
  std::int64_t first, count;
};

// Groups ascending rows into runs.
std::vector<Run> runs_of(const Rows& rows) {
  std::vector<Run> runs;
  for (const std::int64_t row : rows) {
    if (!runs.empty() && row == runs.back().first + runs.back().count) {
      ++runs.back().count;
    } else {
      runs.push_back({row, 1});
    }
  }
  return runs;
}

std::size_t unsigned_of(std::int64_t value) { return static_cast<std::size_t>(value); }

std::string megabytes(std::uint64_t bytes) {
  return std::to_string((bytes + 999'999) / 1'000'000) + " MB";
}

}  // namespace

// ---- stream contexts ----

StreamContextPool::StreamContextPool(const tt_device_functions& functions, const Contract& contract,
                                     EngineSettings settings,
                                     std::function<void(const std::string&)> log)
    : functions_(functions),
      contract_(contract),
      settings_(std::move(settings)),
      each_(context_memory(contract_, settings_)),
      steps_(settings_.step_profiles, *contract.slots(), contract.marks()),
      log_(std::move(log)) {
  const auto fits_any = [](const Profile& one, const Profiles& others) {
    return std::any_of(others.begin(), others.end(), [&](const Profile& other) {
      return other.batch >= one.batch && other.source_length >= one.source_length;
    });
  };
  for (const Profile& bucket : steps_.buckets()) {
    if (fits_any(bucket, settings_.encoder_profiles)) continue;
    throw bundle_error("the encoder engine has no profile for " + name_of(bucket) +
                       "; export the bundle again.");
  }
  for (const Profile& one : settings_.encoder_profiles) {
    if (!settings_.exact_encoder || fits_any(one, buckets())) continue;
    throw bundle_error("the encoder has a profile for " + name_of(one) +
                       ", which fits no batch; export the bundle again.");
  }
}

std::unique_ptr<StreamContext> StreamContextPool::acquire() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      auto context = std::move(free_.back());
      free_.pop_back();
      return context;
    }
  }
  // One at a time: memory that another context is about to allocate is still free.
  const std::lock_guard lock(creation_);
  if (const auto memory = device_memory()) check_fits(*memory, 1);
  return std::make_unique<StreamContext>(functions_, contract_, settings_, steps_, log_);
}

std::optional<GpuMemory> StreamContextPool::device_memory() const {
  if (functions_.memory == nullptr) return std::nullopt;
  GpuMemory found;
  check_device(functions_.memory(functions_.context, &found.free, &found.total));
  return found;
}

void StreamContextPool::check_fits(const GpuMemory& memory, std::uint64_t contexts) const {
  const std::uint64_t size = each_.device + settings_.scratch_bytes;
  if (contexts * size <= memory.free) return;
  const bool one = contexts == 1;
  throw backend_error(
      "the GPU has too little memory: " + megabytes(memory.free) + " of " +
      megabytes(memory.total) + " are free, and " +
      (one ? "a batch needs " : std::to_string(contexts) + " workers need ") +
      megabytes(contexts * size) + " (" + (one ? "" : "each ") + megabytes(each_.device) +
      " of state and " + megabytes(settings_.scratch_bytes) +
      " of scratch memory for the engines). Lower workers, or export engines with a smaller "
      "--max-batch or --profiles.");
}

int StreamContextPool::fitting_batches(int workers, int batches) {
  const auto memory = device_memory();
  if (!memory) return batches;
  check_fits(*memory, static_cast<std::uint64_t>(workers));
  const std::uint64_t size = each_.device + settings_.scratch_bytes;
  const std::uint64_t each = memory->free / size / static_cast<std::uint64_t>(workers);
  if (each >= static_cast<std::uint64_t>(batches)) return batches;
  log_("the GPU has memory for " + std::to_string(each) + " of " + std::to_string(batches) +
       " batches per worker, of " + megabytes(size) + " each (" + megabytes(memory->free) + " of " +
       megabytes(memory->total) +
       " are free): sentences that cannot share a batch wait for each other");
  return static_cast<int>(each);
}

void StreamContextPool::release(std::unique_ptr<StreamContext> context) {
  if (context->has_failed) return;
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(context));
}

// ---- the batch ----

DeviceBatch::DeviceBatch(std::shared_ptr<StreamContextPool> pool, const SearchOptions& options,
                         std::int64_t start_token)
    : pool_(std::move(pool)),
      context_(pool_->acquire()),
      device_(context_->device()),
      buffers_(context_->buffers()),
      options_(options),
      encoder_outputs_(context_->contract().encoder_outputs),
      step_specs_(context_->contract().caches()),
      slots_(context_->step_profiles().fewest_slots()) {
  step_specs_.insert(step_specs_.end(), buffers_.state().begin(), buffers_.state().end());
  begin(start_token);  // a context that fails here is freed with the batch
}

DeviceBatch::~DeviceBatch() {
  // A context whose memory may hold NaN is not reused: clearing it is not worthwhile.
  if (context_ && nan_rows_.empty()) pool_->release(std::move(context_));
}

std::int64_t DeviceBatch::rows() const {
  return bucket_ ? context_->step_profiles().buckets()[*bucket_].batch : 0;
}

std::optional<std::int64_t> DeviceBatch::capacity_for(std::int64_t longest) const {
  std::int64_t most = 0;
  for (const Profile& one : context_->step_profiles().buckets()) {
    if (one.source_length >= longest) most = std::max(most, one.batch);
  }
  return most;
}

// Marks the stream context unusable if `work` throws.
template <class Work>
auto DeviceBatch::failing(const Work& work) {
  try {
    return work();
  } catch (...) {
    context_->has_failed = true;
    throw;
  }
}

std::pair<Rows, Rows> DeviceBatch::update(const Rows& keep, const Sources& arriving) {
  check_collected("update");
  std::int64_t longest = 1;
  for (const std::int64_t row : keep) longest = std::max(longest, rows_.at(row).length);
  for (const Tokens& tokens : arriving.tokens) {
    longest = std::max(longest, static_cast<std::int64_t>(tokens.size()));
  }
  const std::size_t sentences = std::max<std::size_t>(1, keep.size() + arriving.size());
  const std::size_t bucket = smallest_profile(context_->step_profiles().buckets(),
                                              static_cast<std::int64_t>(sentences), longest);
  return failing([&] {
    clear_nan(keep);
    const Rows kept = rearrange(keep, bucket);
    set_slots(slots_needed(context_->poll_every()));
    Rows placed, idle;
    for (std::int64_t row = 0; row < rows(); ++row) {
      if (std::find(kept.begin(), kept.end(), row) != kept.end()) continue;
      (placed.size() < arriving.size() ? placed : idle).push_back(row);
    }
    if (!placed.empty()) start(placed, arriving);
    make_idle(idle);
    send_request();
    return std::pair(kept, placed);
  });
}

const StepResults& DeviceBatch::step(const StepInputs& inputs) {
  results_.clear();
  failing([&] {
    if (inputs.are_for_one_step()) {
      check_collected("change the inputs of a step");
      force(inputs.forced);
      change(inputs);
      enqueue(1);
      collect();
      return;
    }
    force({});
    change({});
    if (in_flight_.empty()) enqueue(context_->poll_every());
    const bool goes_on = std::any_of(rows_.begin(), rows_.end(),
                                     [](const auto& row) { return row.second.left > 0; });
    if (goes_on) enqueue(context_->poll_every());
    collect();
  });
  return results_;
}

const StepResults& DeviceBatch::drain() {
  results_.clear();
  failing([&] {
    while (!in_flight_.empty()) collect();
  });
  return results_;
}

Pool DeviceBatch::pool(std::int64_t row) const {
  const auto done = pools_.find(row);
  if (done != pools_.end()) return done->second;
  return buffers_.read_pool(collected_.results, collected_.entry, row);
}

// The row still takes part in the rounds in flight.
void DeviceBatch::retire(std::int64_t row) {
  rows_.erase(row);
  failing([&] { make_idle({row}); });
}

void DeviceBatch::drop(std::int64_t row, std::int64_t beam) {
  check_collected("drop a beam");
  // In the initial state, only the first beam of a sentence is live (rule 1).
  const Address dead = buffers_.initial_state("log_probs") + sizeof(float);
  const std::size_t index = unsigned_of(row * buffers_.sizes().k + beam);
  failing([&] {
    const Address target = buffers_.entry_address("log_probs", 0) + sizeof(float) * index;
    device_.copy(target, dead, sizeof(float));
  });
}

// ---- steps ----

// Uploads the forced tokens of the next step; none lets all rows run free.
void DeviceBatch::force(const std::vector<std::int64_t>& tokens) {
  Upload& upload = buffers_.request("forced_tokens");
  if (!tokens.empty()) {
    upload.send(tokens.data(), sizeof(tokens[0]) * tokens.size());
  } else if (forced_) {
    static_assert(kFree == -1, "all bits are set");
    device_.fill(upload.target(), 0xFF, sizeof(kFree) * unsigned_of(buffers_.sizes().n));
  }
  forced_ = !tokens.empty();
}

// Uploads the inputs of rules 13 to 15 of the next step.
void DeviceBatch::change(const StepInputs& inputs) {
  const auto& [marked, noise, progress] = std::tie(inputs.marked, inputs.noise, inputs.progress);
  const Sizes& most = buffers_.sizes();
  if (marked.count > most.b || noise.count > most.r || noise.tail_count > most.d ||
      progress.count > most.u) {
    throw backend_error(
        "a search has more marked tokens than a step of the engines takes; use other options, or "
        "an onnx target.");
  }
  const auto send = [&](const char* name, const auto& values) {
    if (values.empty()) return;
    buffers_.request(name).send(values.data(), sizeof(values[0]) * values.size());
  };
  send(kMarkedTokens, marked.tokens);
  send(kMarkedFactors, marked.factors);
  send(kSamplingNoise, noise.values);
  send(kTailTokens, noise.tail_tokens);
  send(kTailNoise, noise.tail_values);
  send(kConstraintTokens, progress.tokens);
  send(kConstraintProgress, progress.with_each);
  send(kOtherProgress, progress.with_other);
  if (progress.empty() && changes_.constraint_tokens > 0) clear_progress();
  changes_ = {marked.count, noise.count, noise.tail_count, progress.count};
}

// Lets steps without constraints order all candidates by their log-probabilities alone.
void DeviceBatch::clear_progress() {
  if (!context_->contract().marks()) return;
  const Sizes& sizes = buffers_.sizes();
  device_.fill(buffers_.request(kOtherProgress).target(), 0,
               sizeof(std::int64_t) * unsigned_of(sizes.n * sizes.k));
}

// Enqueues steps and copies of their results.
void DeviceBatch::enqueue(std::size_t count) {
  if (const std::int64_t needed = slots_needed(count); needed > slots_) set_slots(needed);
  const bool changes = !changes_.empty();
  const std::size_t profile = context_->step_profiles().index(*bucket_, slots_, changes);
  if (changes) {
    context_->changed_step(profile, changes_);
  } else {
    context_->round(profile, count);
  }
  for (auto& [row, running] : rows_) running.left -= static_cast<std::int64_t>(count);
  std::byte* results = context_->results(turn_);
  device_.copy_out(results, buffers_.results(), buffers_.results_bytes());
  std::byte* attention = options_.return_attention ? context_->attention(turn_) : nullptr;
  const std::size_t size = buffers_.attention_bytes();
  for (std::size_t entry = 0; attention != nullptr && entry < buffers_.ring_size(); ++entry) {
    device_.copy_out(attention + entry * size, buffers_.attention(entry), size);
  }
  in_flight_.push_back({count, device_.record(), results, attention});
  turn_ = 1 - turn_;
}

// Waits for the oldest steps in flight and appends their results.
void DeviceBatch::collect() {
  const InFlight first = in_flight_.front();
  in_flight_.pop_front();
  device_.wait(first.arrived);
  const Sizes sizes = this->sizes();
  std::size_t entry = 0;
  for (std::size_t index = 0; index < first.count; ++index) {
    entry = (index + 1) % buffers_.ring_size();
    results_.push_back(buffers_.read_result(first.results, first.attention, entry, sizes));
    add_nan_rows(results_.back(), sizes.k, nan_rows_);
  }
  collected_ = {first.results, entry};
  for (auto& [row, running] : rows_) {
    if (!results_.back().done[unsigned_of(row)] || pools_.count(row) > 0) continue;
    running.left = 0;
    // The pool of a finished sentence does not change any more.
    pools_[row] = buffers_.read_pool(first.results, entry, row);
  }
}

void DeviceBatch::check_collected(const char* what) const {
  if (in_flight_.empty()) return;
  throw std::logic_error(std::string("cannot ") + what +
                         ": steps are in flight; call drain() first.");
}

// ---- rows ----

// Initializes state that does not depend on sentences; all rows are idle.
void DeviceBatch::begin(std::int64_t start_token) {
  device_.activate();
  buffers_.send_initial_state(start_token);
  Rows all;
  for (std::int64_t row = 0; row < buffers_.sizes().n; ++row) all.push_back(row);
  reset(all);
  make_idle(all);
  device_.fill(buffers_.request("forced_tokens").target(), 0xFF,
               sizeof(kFree) * unsigned_of(buffers_.sizes().n));
  clear_progress();
  send_request();
}

// Clears vacated rows that hold NaN: attention masks by multiplying with zero, and NaN times zero
// would be NaN for the next sentence. The staging memory may hold NaN of the encoder, too.
void DeviceBatch::clear_nan(const Rows& keep) {
  if (nan_rows_.empty()) return;
  const Sizes sizes = this->sizes();
  const auto clear = [&](const TensorSpec& spec, Address start, std::int64_t row) {
    const std::size_t size = row_bytes(spec, sizes);
    device_.fill(start + unsigned_of(row) * size, 0, size);
  };
  for (const std::int64_t row : nan_rows_) {
    if (std::find(keep.begin(), keep.end(), row) != keep.end()) continue;
    for (const TensorSpec& spec : context_->contract().caches()) clear(spec, address(spec), row);
    for (const TensorSpec& spec : encoder_outputs_) {
      if (spec.name != "source_bias") clear(spec, address(spec), row);
    }
  }
  for (const TensorSpec& spec : encoder_outputs_) {
    device_.fill(buffers_.encoded().at(spec.name), 0, buffers_.max_bytes(spec));
  }
  nan_rows_.clear();  // the next step finds NaN in kept rows again
}

// Sizes of a step of the batch.
Sizes DeviceBatch::sizes() const {
  return context_->sizes(context_->step_profiles().index(*bucket_, slots_));
}

// Moves kept rows into a bucket's rows, as few as possible; returns the new row of each.
Rows DeviceBatch::rearrange(const Rows& keep, std::size_t bucket) {
  const std::int64_t rows = context_->step_profiles().buckets()[bucket].batch;
  Rows kept;
  std::vector<std::pair<std::int64_t, std::int64_t>> moves;  // no target is also a source
  std::int64_t free = 0;
  for (const std::int64_t row : keep) {
    if (row < rows) {
      kept.push_back(row);
      continue;
    }
    while (std::find(keep.begin(), keep.end(), free) != keep.end()) ++free;
    kept.push_back(free);
    moves.emplace_back(row, free++);
  }
  const bool is_first = !bucket_;
  const Sizes past = is_first ? Sizes() : sizes();
  bucket_ = bucket;
  if (!is_first && !keep.empty()) {
    const Sizes now = sizes();
    const auto move = [&](const TensorSpec& spec) {
      const std::size_t size = row_bytes(spec, now);
      const Address start = address(spec);
      for (const auto& [from, to] : moves) {
        device_.copy(start + unsigned_of(to) * size, start + unsigned_of(from) * size, size);
      }
    };
    for (const TensorSpec& spec : encoder_outputs_) {
      if (now.s == past.s) {
        move(spec);
      } else {
        repack(spec, keep, kept, past, now);
      }
    }
    for (const TensorSpec& spec : step_specs_) move(spec);
  }
  std::map<std::int64_t, Row> running;
  for (std::size_t i = 0; i < keep.size(); ++i) {
    running.emplace(kept[i], std::move(rows_.at(keep[i])));
  }
  rows_ = std::move(running);
  pools_.clear();
  return kept;
}

// Repacks rows of an encoder output for another S, through the staging memory of new sentences.
void DeviceBatch::repack(const TensorSpec& spec, const Rows& keep, const Rows& kept,
                         const Sizes& past, const Sizes& now) {
  const Address start = buffers_.cross().at(spec.name), staged = buffers_.encoded().at(spec.name);
  const std::size_t size = row_bytes(spec, now);
  for (std::size_t i = 0; i < keep.size(); ++i) {
    const Address target = staged + unsigned_of(kept[i]) * size;
    blank(spec, target, 1, now);
    copy_rows(spec, target, now, start + unsigned_of(keep[i]) * row_bytes(spec, past), past, 1);
  }
  Rows ascending = kept;
  std::sort(ascending.begin(), ascending.end());
  for (const auto& [first, count] : runs_of(ascending)) {
    const std::size_t offset = unsigned_of(first) * size;
    device_.copy(start + offset, staged + offset, unsigned_of(count) * size);
  }
}

// Copies rows of an encoder output between tensors of different S.
void DeviceBatch::copy_rows(const TensorSpec& spec, Address target, const Sizes& target_sizes,
                            Address source, const Sizes& source_sizes, std::int64_t rows) {
  const auto axis = std::find(spec.axes.begin(), spec.axes.end(), kS);
  const auto element_count = [&](auto first, auto last) {
    std::size_t size = 1;
    for (; first != last; ++first) size *= unsigned_of(target_sizes.of(*first));
    return size;
  };
  const std::size_t inner = size_of(spec.type) * element_count(axis + 1, spec.axes.end());
  const std::size_t outer = unsigned_of(rows) * element_count(spec.axes.begin() + 1, axis);
  const std::size_t to = inner * unsigned_of(target_sizes.s);
  const std::size_t from = inner * unsigned_of(source_sizes.s);
  device_.copy_rows(target, to, source, from, std::min(to, from), outer);
}

// Masks all positions of rows. Masked keys and values may keep their contents.
void DeviceBatch::blank(const TensorSpec& spec, Address target, std::int64_t rows,
                        const Sizes& sizes) {
  if (spec.name != "source_bias") return;
  device_.copy(target, buffers_.blank_bias(), unsigned_of(rows) * row_bytes(spec, sizes));
}

// Slots that the sentences use within the next steps, those of new sentences included. Idle rows do
// not count, since their results are ignored.
std::int64_t DeviceBatch::slots_needed(std::size_t steps) const {
  auto longest = static_cast<std::int64_t>(steps);
  for (const auto& [row, running] : rows_) {
    if (running.left <= 0) continue;  // ended, perhaps long before its maximum length
    const std::int64_t position = running.most - running.left;
    longest =
        std::max(longest, std::min(running.most, position + static_cast<std::int64_t>(steps)));
  }
  return longest * buffers_.sizes().k;
}

// Makes steps read at least that many cache slots: the smallest number that a profile has.
void DeviceBatch::set_slots(std::int64_t needed) {
  const Sizes past = sizes();
  slots_ = context_->step_profiles().slots_for(needed);
  const Sizes now = sizes();
  if (now.p == past.p) return;
  // Only the ancestry has a column per slot. It is laid out anew in the second entry of the ring,
  // which no step in flight needs by then, and copied back.
  for (const TensorSpec& spec : buffers_.state()) {
    if (std::find(spec.axes.begin(), spec.axes.end(), kP) == spec.axes.end()) continue;
    const Address start = address(spec), staged = buffers_.entry_address(spec.name, 1);
    const std::size_t size = tensor_bytes(spec, now), beams = unsigned_of(now.n * now.k);
    const std::size_t width = size / beams, old = tensor_bytes(spec, past) / beams;
    if (width > old) device_.copy(staged, buffers_.initial_state(spec.name), size);
    device_.copy_rows(staged, width, start, old, std::min(width, old), beams);
    device_.copy(start, staged, size);
  }
}

// Encodes sentences into rows and resets the state of the rows.
void DeviceBatch::start(const Rows& rows, const Sources& arriving) {
  const Sizes now = sizes(), encoded = encode(arriving, now);
  for (const TensorSpec& spec : encoder_outputs_) {
    const Address start = buffers_.cross().at(spec.name), staged = buffers_.encoded().at(spec.name);
    const std::vector<Run> runs = runs_of(rows);
    const auto target_of = [&](std::int64_t row) {
      return start + unsigned_of(row) * row_bytes(spec, now);
    };
    // Before all other copies, since a device may run copies together that do not overlap.
    for (const auto& [first, count] : runs) blank(spec, target_of(first), count, now);
    std::int64_t done = 0;
    for (const auto& [first, count] : runs) {
      copy_rows(spec, target_of(first), now, staged + unsigned_of(done) * row_bytes(spec, encoded),
                encoded, count);
      done += count;
    }
  }
  reset(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t most = arriving.max_lengths[i];
    rows_.insert_or_assign(rows[i], Row{static_cast<std::int64_t>(arriving.tokens[i].size()), most,
                                        most, *arriving.options[i]});
  }
}

// Runs the encoder and returns the sizes of its outputs. sizes: of the bucket.
Sizes DeviceBatch::encode(const Sources& arriving, const Sizes& sizes) {
  std::size_t longest = 0;
  for (const Tokens& tokens : arriving.tokens) longest = std::max(longest, tokens.size());
  const auto whole = (static_cast<std::int64_t>(longest) + kEncoderStep - 1) / kEncoderStep;
  Sizes encoded = sizes;
  encoded.n = static_cast<std::int64_t>(arriving.size());
  encoded.s = std::min(sizes.s, whole * kEncoderStep);
  const std::size_t profile = smallest_profile(context_->encoder_profiles(), encoded.n, encoded.s);
  if (context_->exact_encoder()) {
    const Profile& exact = context_->encoder_profiles()[profile];
    encoded.n = exact.batch, encoded.s = exact.source_length;
  }
  const Tokens idle = {arriving.tokens[0].back()};  // any valid id
  std::vector<std::int64_t> ids, lengths;
  for (std::size_t row = 0; row < unsigned_of(encoded.n); ++row) {
    const Tokens& tokens = row < arriving.size() ? arriving.tokens[row] : idle;
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    ids.insert(ids.end(), unsigned_of(encoded.s) - tokens.size(),
               tokens.back());  // pad with any valid id
    lengths.push_back(static_cast<std::int64_t>(tokens.size()));
  }
  buffers_.source_ids().send(ids.data(), sizeof(ids[0]) * ids.size());
  buffers_.source_lengths().send(lengths.data(), sizeof(lengths[0]) * lengths.size());
  std::vector<DeviceTensor> tensors = {
      {"source_ids", {encoded.n, encoded.s}, buffers_.source_ids().target()},
      {"source_lengths", {encoded.n}, buffers_.source_lengths().target()}};
  for (const auto& [name, address] : buffers_.encoded()) tensors.push_back({name, {}, address});
  device_.launch(TT_ENGINE_ENCODER, profile, tensors);
  return encoded;
}

// Resets rows to the state before the first step.
void DeviceBatch::reset(const Rows& rows) {
  Sizes sizes = buffers_.sizes();
  sizes.p = slots_;
  for (const TensorSpec& spec : buffers_.state()) {
    const std::size_t size = row_bytes(spec, sizes);
    for (const auto& [first, count] : runs_of(rows)) {
      device_.copy(address(spec) + unsigned_of(first) * size, buffers_.initial_state(spec.name),
                   unsigned_of(count) * size);
    }
  }
}

void DeviceBatch::make_idle(const Rows& rows) {
  for (const auto& [first, count] : runs_of(rows)) {
    device_.fill(buffers_.entry_address("done", 0) + unsigned_of(first), 1, unsigned_of(count));
  }
}

// Uploads the limits and options of all rows where they have changed.
void DeviceBatch::send_request() {
  for (const TensorSpec& spec : context_->contract().request) {
    if (spec.name == "forced_tokens" || spec.axes.size() > 1) continue;  // sent by `step`
    const std::size_t size = size_of(spec.type);
    std::vector<std::byte> values(size * unsigned_of(buffers_.sizes().n));
    for (std::int64_t row = 0; row < buffers_.sizes().n; ++row) {
      const auto found = rows_.find(row);
      const bool is_idle = found == rows_.end();
      write_request(spec, values.data() + unsigned_of(row) * size,
                    is_idle ? options_ : found->second.options, is_idle ? 1 : found->second.most);
    }
    std::vector<std::byte>& sent = sent_[spec.name];
    if (values == sent) continue;
    buffers_.request(spec.name).send(values.data(), values.size());
    sent = std::move(values);
  }
}

// Address of a tensor with a row per sentence, between steps.
Address DeviceBatch::address(const TensorSpec& spec) const {
  for (const Addresses* group : {&buffers_.cross(), &buffers_.caches()}) {
    if (const auto found = group->find(spec.name); found != group->end()) return found->second;
  }
  return buffers_.entry_address(spec.name, 0);
}

// ---- the backend ----

DeviceBackend::DeviceBackend(const tt_device_functions& functions, const Contract& contract,
                             EngineSettings settings, std::function<void(const std::string&)> log)
    : pool_(std::make_shared<StreamContextPool>(functions, contract, std::move(settings),
                                                std::move(log))) {}

std::unique_ptr<Batch> DeviceBackend::batch(const SearchOptions& options,
                                            std::int64_t start_token) const {
  return std::make_unique<DeviceBatch>(pool_, options, start_token);
}

std::int64_t DeviceBackend::default_batch_tokens() const {
  return largest_source(pool_->buckets());
}

}  // namespace translate_trt::runtime
