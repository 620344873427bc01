// A fake device in host memory that runs the tracing engines. Work runs only when it is waited for,
// and every allocation is separate, so that sanitizers detect accesses out of bounds.
#pragma once

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engines/device_buffers.h"
#include "tracing_engines.h"
#include "translate_trt/device.h"

namespace translate_trt::runtime {

class HostDevice {
 public:
  // State shared by all devices of a test.
  struct Common {
    std::vector<std::unique_ptr<HostDevice>> devices;
    int closed = 0;
    int fail_after = -1;                // number of launches before one fails; negative: never
    int refused_captures = 0;           // number of captures to refuse
    std::map<std::string, int> counts;  // calls by function name
    std::vector<std::int64_t> slots;    // that steps have read, without repetitions in a row
    std::vector<std::pair<std::int64_t, std::int64_t>> encoded;  // N and S of the encoder's runs
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
      std::memset(target, kUnwritten, size);  // value for reads before the copy has run
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
      *event = reinterpret_cast<void*>(of(device).asked_ + 1);  // NULL is not a valid event
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
      if (of(device).common_.refused_captures > 0) {
        of(device).common_.refused_captures -= 1;
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
  struct Free {
    void operator()(std::byte* memory) const {
      ::operator delete(memory, std::align_val_t{kAlignment});
    }
  };
  using Memory = std::unique_ptr<std::byte, Free>;

  static constexpr int kUnwritten = 0xFF;

  static HostDevice& of(void* device) { return *static_cast<HostDevice*>(device); }
  static void* at(Address address) { return reinterpret_cast<void*>(address); }

  std::byte* memory(std::size_t size) {
    const std::size_t whole = (size / kAlignment + 1) * kAlignment;
    memory_.emplace_back(
        static_cast<std::byte*>(::operator new(whole, std::align_val_t{kAlignment})));
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
    TracedTensors tensors;
    for (std::size_t i = 0; i < work.tensor_count; ++i) {
      const tt_device_tensor& one = work.tensors[i];
      tensors.add(one.name, one.address, one.shape);
    }
    const bool is_step = work.engine == TT_ENGINE_STEP;
    // As for torch targets, whose graphs are captured for the tensors of each step.
    const bool is_new = ran_.insert({work.profile, tensors.addresses}).second;
    if (capturing_ && is_step && is_new) {
      return tt_device_fail(TT_BACKEND_ERROR, "a step must have run before it is captured.");
    }
    return ask(is_step ? "step" : "encode", [this, is_step, tensors] {
      if (common_.fail_after >= 0 && launches_++ >= common_.fail_after) {
        throw std::runtime_error("an illegal memory access.");
      }
      if (is_step && (common_.slots.empty() || common_.slots.back() != tensors.slots)) {
        common_.slots.push_back(tensors.slots);
      }
      if (!is_step) common_.encoded.emplace_back(tensors.rows, tensors.columns);
      is_step ? trace_step(tensors) : trace_encoder(tensors);
    });
  }

  Common& common_;
  std::vector<Memory> memory_;
  std::deque<Work> queue_;
  std::size_t asked_ = 0, done_ = 0;
  std::unique_ptr<Graph> capturing_;
  std::set<std::pair<std::int32_t, decltype(TracedTensors::addresses)>> ran_;
  std::vector<std::unique_ptr<Graph>> graphs_;
  int launches_ = 0;
};

}  // namespace translate_trt::runtime
