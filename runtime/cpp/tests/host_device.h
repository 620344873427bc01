// A device that the host plays: nothing that is asked for happens before it is waited for, and
// every allocation is one of its own, so that a sanitizer sees what leaves it. Its engines trace
// what moves: the encoder writes each token id into the cross-attention keys, and a step its number
// into its slot of the cache, and fails if what it finds of its sentence is not what was left
// there.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "decoder_shape.h"
#include "device_buffers.h"
#include "translate_trt/device.h"

namespace translate_trt::runtime {

// One layer of one head, a beam, and as many slots as any test needs.
// A sentence of this token has log-probabilities of NaN, and leaves NaN behind.
inline constexpr std::int64_t kNanToken = 99;

inline DecoderShape tracing_shape() {
  DecoderShape shape = {1, 1, 1, 1, false, {}};
  shape.form.beams = 1;
  shape.form.slots = 96;
  return shape;
}

class HostDevice {
 public:
  // What all devices of a test have in common.
  struct Common {
    std::vector<std::unique_ptr<HostDevice>> devices;
    int closed = 0;
    int fail_after = -1;  // launches that run on a device until one fails; negative: none does
    bool refuse_capture = false;
    std::map<std::string, int> counts;  // by name of a function
  };

  static tt_device_functions functions(Common& common) {
    tt_device_functions table = {};
    table.struct_size = sizeof(table);
    table.context = &common;
    table.open = [](void* context, void** device) {
      auto* all = static_cast<Common*>(context);
      all->devices.push_back(std::make_unique<HostDevice>(*all));
      *device = all->devices.back().get();
      return tt_status{TT_OK};
    };
    table.close = [](void* device) { ++of(device).common_.closed; };
    table.activate = [](void* device) { return of(device).counted("activate"); };
    table.allocate = [](void* device, size_t size, uint64_t* address) {
      *address = reinterpret_cast<uint64_t>(of(device).memory(size));
      return of(device).counted("allocate");
    };
    table.pin = [](void* device, size_t size, void** memory) {
      *memory = of(device).memory(size);
      return of(device).counted("pin");
    };
    table.copy_in = [](void* device, uint64_t target, const void* source, size_t size) {
      return of(device).ask("copy_in", [=] { std::memcpy(at(target), source, size); });
    };
    table.copy_out = [](void* device, void* target, uint64_t source, size_t size) {
      std::memset(target, kUnwritten, size);  // whoever reads it too early reads this
      return of(device).ask("copy_out", [=] { std::memcpy(target, at(source), size); });
    };
    table.copy = [](void* device, uint64_t target, uint64_t source, size_t width, size_t height,
                    size_t target_pitch, size_t source_pitch) {
      return of(device).ask("copy", [=] {
        for (size_t row = 0; row < height; ++row) {
          std::memcpy(at(target + row * target_pitch), at(source + row * source_pitch), width);
        }
      });
    };
    table.fill = [](void* device, uint64_t target, int32_t value, size_t size) {
      return of(device).ask("fill", [=] { std::memset(at(target), value, size); });
    };
    table.launch = [](void* device, const tt_launch* work) { return of(device).launch(*work); };
    table.record = [](void* device, void** event) {
      *event = reinterpret_cast<void*>(of(device).asked_ + 1);  // NULL is none
      return of(device).counted("record");
    };
    table.wait = [](void* device, void* event) {
      return of(device).run_until(reinterpret_cast<std::size_t>(event) - 1);
    };
    table.begin_capture = [](void* device) {
      of(device).capturing_ = std::make_unique<Graph>();
      return of(device).counted("capture");
    };
    table.end_capture = [](void* device, void** graph) {
      auto captured = std::move(of(device).capturing_);
      if (of(device).common_.refuse_capture) {
        return tt_device_fail(TT_BACKEND_ERROR, "capturing is not permitted.");
      }
      if (graph != nullptr) {
        *graph = captured.get();
        of(device).graphs_.push_back(std::move(captured));
      }
      return tt_status{TT_OK};
    };
    table.replay = [](void* device, void* graph) {
      return of(device).ask("replay", [graph] {
        for (const auto& part : *static_cast<Graph*>(graph)) part();
      });
    };
    return table;
  }

  explicit HostDevice(Common& common) : common_(common) {}

 private:
  using Work = std::function<void()>;
  using Graph = std::vector<Work>;
  using Memory = std::unique_ptr<std::byte, void (*)(void*)>;

  static constexpr int kUnwritten = 0xFF;

  // Tensors of a launch, in the order of their names.
  struct Tensors {
    std::map<std::string, Address> addresses;
    std::int64_t rows, columns;  // N and S

    template <class T>
    T* row(const std::string& name, std::int64_t row, std::int64_t size = 1) const {
      return reinterpret_cast<T*>(addresses.at(name)) + row * size;
    }
  };

  static HostDevice& of(void* device) { return *static_cast<HostDevice*>(device); }
  static void* at(Address address) { return reinterpret_cast<void*>(address); }

  std::byte* memory(std::size_t size) {
    const std::size_t whole = (size / kAlignment + 1) * kAlignment;
    memory_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(kAlignment, whole)),
                         &std::free);
    std::memset(memory_.back().get(), kUnwritten, whole);
    return memory_.back().get();
  }

  tt_status counted(const char* what) {
    ++common_.counts[what];
    return TT_OK;
  }

  tt_status ask(const char* what, Work work) {
    if (capturing_) {
      capturing_->push_back(std::move(work));
    } else {
      queue_.push_back(std::move(work));
      ++asked_;
    }
    return counted(what);
  }

  tt_status run_until(std::size_t position) {
    try {
      for (; done_ < position; ++done_) {
        queue_.front()();
        queue_.pop_front();
      }
    } catch (const std::exception& error) {
      return tt_device_fail(TT_BACKEND_ERROR, error.what());
    }
    return counted("wait");
  }

  tt_status launch(const tt_launch& work) {
    Tensors tensors = {{}, 0, 0};
    for (std::size_t i = 0; i < work.tensor_count; ++i) {
      const tt_device_tensor& one = work.tensors[i];
      tensors.addresses[one.name] = one.address;
      const bool is_source = one.name == std::string("source_bias");
      if (is_source && one.shape != nullptr) tensors.columns = one.shape[3];
      if (one.name == std::string("source_ids")) tensors.columns = one.shape[1];
      if (one.shape != nullptr) tensors.rows = one.shape[0];
    }
    const bool is_step = work.engine == TT_ENGINE_STEP;
    return ask(is_step ? "step" : "encode", [this, is_step, tensors] {
      if (common_.fail_after >= 0 && launches_++ >= common_.fail_after) {
        throw std::runtime_error("an illegal memory access.");
      }
      is_step ? step(tensors) : encode(tensors);
    });
  }

  static void encode(const Tensors& given) {
    const std::int64_t size = given.columns;
    for (std::int64_t row = 0; row < given.rows; ++row) {
      for (std::int64_t i = 0; i < size; ++i) {
        const bool is_there = i < *given.row<std::int64_t>("source_lengths", row);
        const auto token = given.row<std::int64_t>("source_ids", row, size)[i];
        given.row<float>("source_bias", row, size)[i] = is_there ? 0 : kMasked;
        given.row<float>("cross_key_0", row, size)[i] =
            token == kNanToken ? std::numeric_limits<float>::quiet_NaN()
                               : static_cast<float>(token);
      }
    }
  }

  static void step(const Tensors& given) {
    for (std::int64_t row = 0; row < given.rows; ++row) {
      const bool was_done = *given.row<char>("done", row) != 0;
      const std::int64_t position = *given.row<std::int64_t>("positions", row);
      const bool is_nan = has_nan(given, row);
      if (!was_done && !is_nan) trace(given, row, position);
      if (is_nan) leave_nan(given, row, position);
      const auto next = position + (was_done ? 0 : 1);
      *given.row<std::int64_t>("next_positions", row) = next;
      *given.row<char>("next_done", row) =
          was_done || next >= *given.row<std::int64_t>("max_lengths", row);
      const std::int64_t forced = *given.row<std::int64_t>("forced_tokens", row);
      const auto own =
          is_nan ? 0
                 : static_cast<std::int64_t>(*given.row<float>("cross_key_0", row, given.columns));
      *given.row<std::int64_t>("next_tokens", row) = forced == kFree ? own : forced;
      *given.row<std::int64_t>("parents", row) = 0;
      *given.row<float>("next_log_probs", row) = is_nan ? std::numeric_limits<float>::quiet_NaN()
                                                        : *given.row<float>("log_probs", row) - 1;
      *given.row<float>("next_finished_scores", row) = -static_cast<float>(next);
      *given.row<std::int64_t>("next_finished_lengths", row) = next;
      *given.row<std::int64_t>("next_finished_parents", row) = 0;
      *given.row<char>("next_finished_truncated", row) = 0;
      const std::int64_t slots = *tracing_shape().form.slots;
      std::memcpy(given.row<float>("next_ancestry", row, slots),
                  given.row<float>("ancestry", row, slots),
                  sizeof(float) * static_cast<std::size_t>(slots));
    }
  }

  // Whether there is any, hidden or not.
  static bool has_nan(const Tensors& given, std::int64_t row) {
    const auto is_nan = [](float value) { return std::isnan(value); };
    const std::int64_t slots = *tracing_shape().form.slots;
    const float* keys = given.row<float>("cross_key_0", row, given.columns);
    const float* past = given.row<float>("self_key_0", row, slots);
    return std::any_of(keys, keys + given.columns, is_nan) ||
           std::any_of(past, past + slots, is_nan);
  }

  static void leave_nan(const Tensors& given, std::int64_t row, std::int64_t position) {
    given.row<float>("self_key_0", row, *tracing_shape().form.slots)[position] =
        std::numeric_limits<float>::quiet_NaN();
  }

  // Checks that source and past of a row are those of its sentence, and leaves a trace of the step.
  static void trace(const Tensors& given, std::int64_t row, std::int64_t position) {
    const float* keys = given.row<float>("cross_key_0", row, given.columns);
    const float* bias = given.row<float>("source_bias", row, given.columns);
    for (std::int64_t i = 0; i < given.columns; ++i) {
      if (bias[i] != 0 && bias[i] != kMasked) throw std::runtime_error("a bias of anything");
      if (bias[i] == 0 && keys[i] != keys[0]) throw std::runtime_error("another's source");
    }
    float* past = given.row<float>("self_key_0", row, *tracing_shape().form.slots);
    for (std::int64_t i = 0; i < position; ++i) {
      if (past[i] != keys[0] * 100 + static_cast<float>(i)) throw std::runtime_error("a past lost");
    }
    past[position] = keys[0] * 100 + static_cast<float>(position);
  }

  Common& common_;
  std::vector<Memory> memory_;
  std::deque<Work> queue_;
  std::size_t asked_ = 0, done_ = 0;
  std::unique_ptr<Graph> capturing_;
  std::vector<std::unique_ptr<Graph>> graphs_;
  int launches_ = 0;
};

}  // namespace translate_trt::runtime
