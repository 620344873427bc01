// Moving of the kept sentences of a batch to arrays of another size.

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "backends/host_batch.h"

namespace translate_trt::runtime {

namespace {

// A row of an array viewed as [outer, axis, inner], with inner in bytes.
struct Split {
  std::size_t outer = 1, axis = 1, inner;

  Split(const Tensor& tensor, std::size_t at) : inner(size_of(tensor.type())) {
    const auto& shape = tensor.shape();
    for (std::size_t i = 1; i < at; ++i) outer *= static_cast<std::size_t>(shape[i]);
    axis = static_cast<std::size_t>(shape[at]);
    for (std::size_t i = at + 1; i < shape.size(); ++i) inner *= static_cast<std::size_t>(shape[i]);
  }
};

void copy_whole_row(const Tensor& from, std::int64_t from_row, const Tensor& to,
                    std::int64_t to_row) {
  const std::size_t bytes = to.row_size() * size_of(to.type());
  copy_blocks(to, {to.address(to_row), bytes}, from, {from.address(from_row), bytes}, bytes, 1);
}

}  // namespace

// Moves the kept rows to the front of new arrays with `rows` rows and the slots that the rows need.
void HostBatch::move(const Rows& keep, std::int64_t rows, std::int64_t source_size) {
  const std::int64_t width = std::min(sizes_.s, source_size);
  Rows used;
  for (const std::int64_t row : keep) used.push_back(slots_ ? *slots_ : used_slots(row));
  const std::int64_t most = used.empty() ? sizes_.k : *std::max_element(used.begin(), used.end());
  runs_.clear();
  Arrays past = std::move(now_);
  sizes_.n = rows, sizes_.p = slots_ ? *slots_ : place_.sizes.slots(most);
  sizes_ = contract_.with_source(sizes_, source_size);
  allocate_small();
  for (const TensorSpec& spec : by_sentence_) {
    if (is_large(spec)) now_[spec.name] = make(spec);
    // Release each old array in turn: the next new array reuses its memory.
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

// Whether to keep the arrays for `rows` rows: new ones would not have many fewer slots. Surplus
// rows stay allocated until the next move, because copying costs as much as several steps.
bool HostBatch::can_shrink(const Rows& keep, std::int64_t rows) const {
  if (keep.empty() || rows > sizes_.n) return false;
  if (slots_) return true;
  return sizes_.p <= place_.sizes.most_slots(max_used_slots(keep));
}

// Largest number of used slots of the rows.
std::int64_t HostBatch::max_used_slots(const Rows& rows) const {
  std::int64_t most = 0;
  for (const std::int64_t row : rows) most = std::max(most, used_slots(row));
  return most;
}

// Shortens the arrays to `rows` rows, and resizes those of the source. Kept rows at the end move
// into vacated rows at the front; returns the new row of each. Unused slots keep their old
// contents, which are masked.
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
        copy_whole_row(array, row, array, *next);
      } else {
        continue;  // `repack_source` moves it
      }
      leave(spec, array, row);
    }
    row = *next++;
  }
  runs_.clear();
  sizes_.n = rows;
  Arrays source;  // old arrays that repack_source replaces
  for (const TensorSpec& spec : encoder_outputs_) {
    if (source_size != sizes_.s) source.insert(now_.extract(spec.name));
  }
  for (Arrays* arrays : {&now_, &other_, &results_}) {
    for (auto& [name, array] : *arrays) array = std::make_shared<Tensor>(array, 0, rows);
  }
  if (!source.empty()) repack_source(std::move(source), keep, rows_now, source_size);
  return rows_now;
}

// Allocates source arrays of another width and copies the encoder outputs of the kept rows.
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

// Number of slots of a row up to the last that a beam attends to or that is written next.
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

// Copies the used slots or source positions of a row from an array of the previous sizes.
void HostBatch::copy_row(const TensorSpec& spec, const Tensor& old, std::int64_t from,
                         std::int64_t to, std::int64_t used, std::int64_t width) {
  Tensor& here = *now_.at(spec.name);
  if (spec.name == "ancestry" || spec.in_place) {
    copy_slots(old, from, here, to, used);
  } else if (is_source(spec)) {
    copy_source(spec, old, from, here, to, width);
  } else {
    copy_whole_row(old, from, here, to);
  }
}

// Slots keep their indices: sums over slots depend on their order, and results must be those of the
// sentence alone.
void HostBatch::copy_slots(const Tensor& from, std::int64_t from_row, const Tensor& to,
                           std::int64_t to_row, std::int64_t used) const {
  const Split target(to, 2), source(from, 2);
  copy_blocks(to, {to.address(to_row), target.axis * target.inner}, from,
              {from.address(from_row), source.axis * source.inner},
              static_cast<std::size_t>(used) * source.inner, target.outer);
}

void HostBatch::copy_source(const TensorSpec& spec, const Tensor& from, std::int64_t from_row,
                            Tensor& to, std::int64_t to_row, std::int64_t width) const {
  const auto is_source = [](std::int64_t axis) { return axis == kS || axis == kW; };
  const auto axis = std::find_if(spec.axes.begin(), spec.axes.end(), is_source);
  const auto at = static_cast<std::size_t>(axis - spec.axes.begin());
  const auto filled = static_cast<std::size_t>(contract_.with_source(sizes_, width).of(*axis));
  const Split source(from, at), target(to, at);
  copy_blocks(to, {to.address(to_row), target.axis * target.inner}, from,
              {from.address(from_row), source.axis * source.inner}, filled * source.inner,
              source.outer);
}

}  // namespace translate_trt::runtime
