// How the sentences of a batch that go on come into arrays of another size.

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "backends/host_batch.h"

namespace translate_trt::runtime {

namespace {

// Caches have a multiple of so many slots, which suits the matrix products.
constexpr std::int64_t kSlotStep = 16;

// Rows of an array seen as [outer, axis, inner], inner in bytes.
struct Split {
  std::size_t outer = 1, axis = 1, inner;

  Split(const Tensor& tensor, std::size_t at) : inner(size_of(tensor.type())) {
    const auto& shape = tensor.shape();
    for (std::size_t i = 1; i < at; ++i) outer *= static_cast<std::size_t>(shape[i]);
    axis = static_cast<std::size_t>(shape[at]);
    for (std::size_t i = at + 1; i < shape.size(); ++i) inner *= static_cast<std::size_t>(shape[i]);
  }
};

}  // namespace

// Slots for so many that are needed, and the spare ones.
std::int64_t HostBatch::slot_capacity(std::int64_t slots) const {
  return (slots + spare_slots_ + kSlotStep - 1) / kSlotStep * kSlotStep;
}

// Arrays for that many rows, the first of them those kept, with what they need of slots.
void HostBatch::move(const Rows& keep, std::int64_t rows, std::int64_t source_size) {
  const std::int64_t width = std::min(sizes_.s, source_size);
  Rows used;
  for (const std::int64_t row : keep) {
    used.push_back(slots_ ? *slots_ : used_slots(row));
  }
  const std::int64_t most = used.empty() ? sizes_.k : *std::max_element(used.begin(), used.end());
  runs_.clear();
  Arrays past = std::move(now_);
  sizes_.n = rows, sizes_.p = slots_ ? *slots_ : slot_capacity(most);
  sizes_ = contract_.with_source(sizes_, source_size);
  allocate_small();
  for (const TensorSpec& spec : by_sentence_) {
    if (is_large(spec)) now_[spec.name] = make(spec);
    // One after the other is let go, and the next array is in its memory.
    const auto found = past.find(spec.name);
    if (found == past.end()) continue;
    const Array old = std::move(found->second);
    past.erase(found);
    for (std::size_t i = 0; i < keep.size(); ++i) {
      copy_row(spec, *old, keep[i], static_cast<std::int64_t>(i), used[i], width);
      leave(spec, *old, keep[i]);
    }
  }
}

// True if the arrays serve for so many rows, the first of them those kept: others would not have
// much fewer slots. Rows that are left over stay allocated until the next move: a copy costs steps.
bool HostBatch::can_shrink(const Rows& keep, std::int64_t rows) const {
  if (keep.empty() || rows > sizes_.n) return false;
  if (slots_) return true;
  std::int64_t most = 0;
  for (const std::int64_t row : keep) most = std::max(most, used_slots(row));
  return sizes_.p <= slot_capacity(most) + kSlotStep;
}

// Makes the arrays that many rows long, and those of the source so wide: of the rows kept, the ones
// behind move into rows of others that have left. Returns where each is. The slots that a row has
// not used hold what its predecessor left there, which is as hidden as zeros.
Rows HostBatch::shrink(const Rows& keep, std::int64_t rows, std::int64_t source_size) {
  const auto kept = static_cast<std::int64_t>(keep.size());
  Rows rows_now = keep, left, front(keep.size());
  std::iota(front.begin(), front.end(), 0);
  std::set_difference(front.begin(), front.end(), keep.begin(), keep.end(),
                      std::back_inserter(left));
  auto next = left.begin();
  for (std::int64_t& row : rows_now) {
    if (row < kept) continue;
    const std::int64_t used = slots_ ? *slots_ : used_slots(row);
    for (const TensorSpec& spec : by_sentence_) {
      const Tensor& array = *now_.at(spec.name);
      if (spec.in_place) {
        copy_slots(array, row, array, *next, used);
      } else if (source_size == sizes_.s || !is_source(spec)) {
        std::memcpy(array.bytes_at(*next), array.bytes_at(row),
                    array.row_size() * size_of(array.type()));
      } else {
        continue;  // `repack_source` moves it
      }
      leave(spec, array, row);
    }
    row = *next++;
  }
  runs_.clear();
  sizes_.n = rows;
  Arrays source;  // as it was, if it is repacked
  for (const TensorSpec& spec : encoder_outputs_) {
    if (source_size != sizes_.s) source.insert(now_.extract(spec.name));
  }
  for (Arrays* arrays : {&now_, &other_, &results_}) {
    for (auto& [name, array] : *arrays) array = std::make_shared<Tensor>(array, 0, rows);
  }
  if (!source.empty()) repack_source(std::move(source), keep, rows_now, source_size);
  return rows_now;
}

// Arrays for sources of another width, with what the encoder found for the rows kept.
void HostBatch::repack_source(Arrays past, const Rows& keep, const Rows& rows_now,
                              std::int64_t source_size) {
  const std::int64_t width = std::min(sizes_.s, source_size);
  sizes_ = contract_.with_source(sizes_, source_size);
  for (const TensorSpec& spec : encoder_outputs_) {
    const Array old = std::move(past.at(spec.name));
    past.erase(spec.name);
    now_[spec.name] = make(spec);
    for (std::size_t i = 0; i < keep.size(); ++i) {
      copy_source(spec, *old, keep[i], *now_.at(spec.name), rows_now[i], width);
      leave(spec, *old, keep[i]);
    }
  }
  for (const TensorSpec& spec : contract_.results) {
    if (spec.name == "attention") results_.at(spec.name) = make(spec);
  }
}

// Slots of a row up to the last that is in a beam's past or is written next.
std::int64_t HostBatch::used_slots(std::int64_t row) const {
  const std::int64_t* next = now_.at("slots")->row<std::int64_t>(row);
  std::int64_t used = *std::max_element(next, next + sizes_.k) + 1;
  const float* ancestry = now_.at("ancestry")->row<float>(row);
  for (std::int64_t beam = 0; beam < sizes_.k; ++beam, ancestry += sizes_.p) {
    for (std::int64_t slot = used; slot < sizes_.p; ++slot) {
      if (ancestry[slot] == 0) used = slot + 1;
    }
  }
  return used;
}

// Of a row of an array from before the sizes changed, the slots used and the source so wide.
void HostBatch::copy_row(const TensorSpec& spec, const Tensor& old, std::int64_t from,
                         std::int64_t to, std::int64_t used, std::int64_t width) {
  Tensor& here = *now_.at(spec.name);
  if (spec.name == "ancestry" || spec.in_place) {
    copy_slots(old, from, here, to, used);
  } else if (is_source(spec)) {
    copy_source(spec, old, from, here, to, width);
  } else {
    std::memcpy(here.bytes_at(to), old.bytes_at(from), here.row_size() * size_of(here.type()));
  }
}

// Every slot keeps its place: sums over slots are rounded in the order of the slots, so they are
// those of the sentence alone.
void HostBatch::copy_slots(const Tensor& from, std::int64_t from_row, const Tensor& to,
                           std::int64_t to_row, std::int64_t used) const {
  const Split target(to, 2), source(from, 2);
  for (std::size_t outer = 0; outer < target.outer; ++outer) {
    std::memcpy(to.bytes_at(to_row) + outer * target.axis * target.inner,
                from.bytes_at(from_row) + outer * source.axis * source.inner,
                static_cast<std::size_t>(used) * source.inner);
  }
}

void HostBatch::copy_source(const TensorSpec& spec, const Tensor& from, std::int64_t from_row,
                            Tensor& to, std::int64_t to_row, std::int64_t width) const {
  const auto is_source = [](std::int64_t axis) { return axis == kS || axis == kW; };
  const auto axis = std::find_if(spec.axes.begin(), spec.axes.end(), is_source);
  const auto at = static_cast<std::size_t>(axis - spec.axes.begin());
  const auto filled = static_cast<std::size_t>(contract_.with_source(sizes_, width).of(*axis));
  const Split source(from, at), target(to, at);
  for (std::size_t outer = 0; outer < source.outer; ++outer) {
    std::memcpy(to.bytes_at(to_row) + outer * target.axis * target.inner,
                from.bytes_at(from_row) + outer * source.axis * source.inner,
                filled * source.inner);
  }
}

}  // namespace translate_trt::runtime
