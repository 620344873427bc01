#include "backends/state_mirror.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace translate_trt::runtime {

namespace {

constexpr const char* kAncestry = "ancestry";
constexpr std::size_t kDeviceAlignment = 256;  // of cudaMalloc, which kernels may expect

}  // namespace

StateMirror::StateMirror(std::shared_ptr<DeviceMemory> device, Arrays& now, Arrays& other,
                         Arrays& results)
    : device_(std::move(device)) {
  std::vector<std::pair<Array*, std::size_t>> placed;  // arrays and their offsets
  std::size_t size = 0;
  const auto place = [&](Arrays& arrays, const auto& belongs) {
    Range range = {size, size};
    for (auto& [name, array] : arrays) {
      if (array->device() != nullptr || !belongs(name)) continue;
      placed.emplace_back(&array, size);
      size = range.end =
          size + (array->bytes() + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
    }
    return range;
  };
  const auto is_ancestry = [](const std::string& name) { return name == kAncestry; };
  const auto is_state = [&](const std::string& name) { return other.count(name) > 0; };
  const auto is_other_state = [&](const std::string& name) {
    return is_state(name) && !is_ancestry(name);
  };
  request_ = place(now, [&](const std::string& name) { return !is_state(name); });
  ancestry_[0] = place(now, is_ancestry);
  state_[0] = place(now, is_other_state);
  results_ = place(results, [](const std::string&) { return true; });
  state_[1] = place(other, is_other_state);
  ancestry_[1] = place(other, is_ancestry);

  host_ = std::shared_ptr<std::byte>(device_->pin(size),
                                     [device = device_](std::byte* data) { device->unpin(data); });
  const auto pool = std::make_shared<BlockPool>(device_);
  // As booleans, the type of one byte.
  block_ = std::make_shared<Tensor>(
      Type::kBool, std::vector<std::int64_t>{static_cast<std::int64_t>(size)}, pool);
  for (const auto& [array, offset] : placed) {
    const Type type = (*array)->type();
    const std::vector<std::int64_t> shape = (*array)->shape();
    const auto view = std::make_shared<Tensor>(type, shape, host_.get() + offset, host_);
    std::memcpy(view->bytes_at(0), (*array)->bytes_at(0), (*array)->bytes());
    twins_[view.get()] =
        std::make_shared<Tensor>(type, shape, block_->address() + offset, block_, device_.get());
    *array = view;
  }
  copy_in({0, size});
}

Array StateMirror::on_device(const Array& array) const {
  return array->device() != nullptr ? array : twins_.at(array.get());
}

void StateMirror::send() {
  if (!is_edited_) return;
  copy_in(request_);
  copy_in(state_[turn_]);
  if (has_ancestry_) copy_in(ancestry_[turn_]);
  is_edited_ = false;
}

void StateMirror::receive() {
  turn_ = 1 - turn_;
  has_ancestry_ = false;
  copy_out({std::min(state_[turn_].begin, results_.begin),
            std::max(state_[turn_].end, results_.end)});  // neighbours
}

void StateMirror::receive_ancestry() {
  if (!has_ancestry_) copy_out(ancestry_[turn_]);
  has_ancestry_ = true;
}

void StateMirror::copy_in(Range range) {
  if (range.begin == range.end) return;
  device_->copy_in(block_->address() + range.begin, host_.get() + range.begin,
                   range.end - range.begin);
}

void StateMirror::copy_out(Range range) {
  if (range.begin == range.end) return;
  device_->copy_out(host_.get() + range.begin, block_->address() + range.begin,
                    range.end - range.begin);
}

}  // namespace translate_trt::runtime
