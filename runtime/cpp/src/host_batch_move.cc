// How the sentences of a batch that go on come into arrays of another size.

#include <algorithm>
#include <cstring>
#include <numeric>

#include "host_batch.h"

namespace translate_trt::runtime {

namespace {

// Caches have a multiple of so many slots, which suits the matrix products.
constexpr std::int64_t kSlotStep = 16;
// A row whose slots run out while its beams' past and its next tokens take up to this share of them
// is compacted; beyond it that would soon be needed again, and caches grow instead.
constexpr double kFull = 0.75;

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

bool is_crossing(const Specs& crossing, const TensorSpec& spec) {
  return std::any_of(crossing.begin(), crossing.end(),
                     [&](const TensorSpec& one) { return one.name == spec.name; });
}

}  // namespace

// Slots for so many that are needed, and the spare ones.
std::int64_t HostBatch::room(std::int64_t slots) const {
  return (slots + spare_slots_ + kSlotStep - 1) / kSlotStep * kSlotStep;
}

// Arrays for that many rows, the first of them those kept, with what they need of slots.
void HostBatch::move(const Rows& keep, std::int64_t rows, std::int64_t source_size) {
  const bool shared = !shape_.form.slots;
  const std::int64_t width = std::min(sizes_.s, source_size);
  std::vector<Rows> living;
  if (shared) {
    for (const std::int64_t row : keep) living.push_back(living_slots(row));
  }
  std::size_t used = 0;
  for (const Rows& slots : living) used = std::max(used, slots.size());
  Arrays past = std::move(now_);
  now_.clear();
  allocate(rows, source_size,
           shared ? room(static_cast<std::int64_t>(used) + sizes_.k) : *shape_.form.slots);
  for (const TensorSpec& spec : by_sentence_) {
    // One after the other is let go: new arrays take up memory only once they are written.
    const auto found = past.find(spec.name);
    if (found == past.end()) continue;
    const Array old = std::move(found->second);
    past.erase(found);
    if (keep.empty()) continue;
    const bool slotted = spec.name == "ancestry" || is_crossing(caches_, spec);
    if (shared && slotted) {
      copy_slots(spec, *old, keep, living);
    } else {
      copy_rows(spec, *old, keep, width);
    }
  }
  for (std::size_t row = 0; row < living.size(); ++row) {
    std::int64_t* slots = now_.at("slots")->row<std::int64_t>(static_cast<std::int64_t>(row));
    std::iota(slots, slots + sizes_.k, static_cast<std::int64_t>(living[row].size()));
  }
}

// The slots of a row that are in a beam's past.
Rows HostBatch::living_slots(std::int64_t row) const {
  const float* ancestry = now_.at("ancestry")->row<float>(row);
  Rows slots;
  for (std::int64_t slot = 0; slot < sizes_.p; ++slot) {
    bool seen = false;
    for (std::int64_t beam = 0; beam < sizes_.k; ++beam) {
      seen = seen || ancestry[beam * sizes_.p + slot] == 0;
    }
    if (seen) slots.push_back(slot);
  }
  return slots;
}

void HostBatch::copy_rows(const TensorSpec& spec, const Tensor& old, const Rows& keep,
                          std::int64_t width) {
  Tensor& here = *now_.at(spec.name);
  const bool crossing = is_crossing(crossing_, spec);
  for (std::size_t i = 0; i < keep.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    if (crossing) {
      copy_source(spec, old, keep[i], here, row, width);
    } else {
      std::memcpy(here.bytes_at(row), old.bytes_at(keep[i]),
                  here.row_size() * size_of(here.type()));
    }
  }
}

// As copy_rows, of each row only the slots that are in a beam's past, moved forward.
void HostBatch::copy_slots(const TensorSpec& spec, const Tensor& old, const Rows& keep,
                           const std::vector<Rows>& living) {
  Tensor& here = *now_.at(spec.name);
  const Split to(here, 2), from(old, 2);
  for (std::size_t i = 0; i < keep.size(); ++i) {
    std::byte* target = here.bytes_at(static_cast<std::int64_t>(i));
    const std::byte* source = old.bytes_at(keep[i]);
    for (std::size_t outer = 0; outer < to.outer; ++outer) {
      std::byte* next = target + outer * to.axis * to.inner;
      for (const std::int64_t slot : living[i]) {
        const std::size_t place = outer * from.axis + static_cast<std::size_t>(slot);
        std::memcpy(next, source + place * from.inner, from.inner);
        next += to.inner;
      }
    }
  }
}

void HostBatch::copy_source(const TensorSpec& spec, const Tensor& from, std::int64_t from_row,
                            Tensor& to, std::int64_t to_row, std::int64_t width) const {
  const auto is_source = [](std::int64_t axis) { return axis == kS || axis == kW; };
  const auto axis = std::find_if(spec.axes.begin(), spec.axes.end(), is_source);
  const auto at = static_cast<std::size_t>(axis - spec.axes.begin());
  const auto filled = static_cast<std::size_t>(shape_.form.with_source(sizes_, width).of(*axis));
  const Split source(from, at), target(to, at);
  for (std::size_t outer = 0; outer < source.outer; ++outer) {
    std::memcpy(to.bytes_at(to_row) + outer * target.axis * target.inner,
                from.bytes_at(from_row) + outer * source.axis * source.inner,
                filled * source.inner);
  }
}

void HostBatch::make_room_if_full(const StepResult& found) {
  if (shape_.form.slots) return;
  const bool* full = results_.at("full")->row<bool>();
  Rows rows;
  for (std::int64_t row = 0; row < sizes_.n; ++row) {
    if (full[row] && !found.done[static_cast<std::size_t>(row)]) rows.push_back(row);
  }
  if (!rows.empty()) make_room(rows);
}

// Slots for the next tokens of rows that have too few. They stay in the order of their tokens, so
// that sums over them have the same bits whenever a batch moves, compacts or grows.
void HostBatch::make_room(const Rows& full) {
  std::vector<Rows> living;
  std::size_t most = 0;
  for (const std::int64_t row : full) {
    living.push_back(living_slots(row));
    most = std::max(most, living.back().size() + static_cast<std::size_t>(sizes_.k));
  }
  if (static_cast<double>(most) > static_cast<double>(sizes_.p) * kFull) {
    grow(full);
    return;
  }
  for (std::size_t i = 0; i < full.size(); ++i) compact(full[i], living[i]);
}

// Moves the slots of a row that are in a beam's past to its front.
void HostBatch::compact(std::int64_t row, const Rows& living) {
  const auto move = [&](Tensor& tensor) {
    const Split at(tensor, 2);
    for (std::size_t outer = 0; outer < at.outer; ++outer) {
      std::byte* slots = tensor.bytes_at(row) + outer * at.axis * at.inner;
      for (std::size_t i = 0; i < living.size(); ++i) {
        const auto from = static_cast<std::size_t>(living[i]);
        if (from != i) std::memcpy(slots + i * at.inner, slots + from * at.inner, at.inner);
      }
    }
  };
  for (const TensorSpec& spec : caches_) move(*now_.at(spec.name));
  move(*now_.at("ancestry"));
  const auto used = static_cast<std::int64_t>(living.size());
  float* ancestry = now_.at("ancestry")->row<float>(row);
  for (std::int64_t beam = 0; beam < sizes_.k; ++beam) {
    std::fill(ancestry + beam * sizes_.p + used, ancestry + (beam + 1) * sizes_.p, kMasked);
  }
  std::int64_t* slots = now_.at("slots")->row<std::int64_t>(row);
  std::iota(slots, slots + sizes_.k, used);
}

// More slots: the rows that are full go on in the new ones.
void HostBatch::grow(const Rows& full) {
  const std::int64_t old = sizes_.p;
  sizes_.p = room(old + sizes_.k);
  runs_.clear();
  const auto copy = [&](const TensorSpec& spec, Array& array) {
    const auto grown = std::make_shared<Tensor>(spec.type, spec.sized(sizes_));
    const std::int64_t columns = spec.axes.size() > 3 ? grown->axis(3) : 1;
    const std::size_t slot = size_of(spec.type) * static_cast<std::size_t>(columns);
    const auto past = static_cast<std::size_t>(old) * slot;
    const auto whole = static_cast<std::size_t>(sizes_.p) * slot;
    for (std::int64_t i = 0; i < grown->axis(0) * grown->axis(1); ++i) {
      const auto block = static_cast<std::size_t>(i);
      std::memcpy(grown->bytes_at(0) + block * whole, array->bytes_at(0) + block * past, past);
    }
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
  for (const std::int64_t row : full) {
    std::int64_t* slots = now_.at("slots")->row<std::int64_t>(row);
    std::iota(slots, slots + sizes_.k, old);
  }
}

}  // namespace translate_trt::runtime
