// Fake graphs on arrays in the memory of the fake CUDA driver.
#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "backends/host_batch.h"

namespace translate_trt::runtime {

// Passes graphs that read and write host memory views of arrays on the fake device.
class DeviceGraphs : public Graphs {
 public:
  explicit DeviceGraphs(std::unique_ptr<Graphs> graphs) : graphs_(std::move(graphs)) {}

  void encode(const Arrays& inputs, const Arrays& outputs) override {
    Views views;
    graphs_->encode(views.of(inputs), views.of(outputs));
  }

  std::function<void()> bind(const Arrays& inputs, const Arrays& outputs) override {
    Views views;
    Arrays read = views.of(inputs), written = views.of(outputs);
    // The graphs update caches in place. Where a cache has two arrays, its contents go to the
    // second one first.
    std::function<void()> copy = [] {};
    for (auto& [name, array] : read) {
      const auto next = written.find(kNext + name);
      if (next == written.end() || array->shape().size() != 4 || array == next->second) continue;
      copy = [copy, from = array, to = next->second] {
        copy();
        std::memcpy(to->bytes_at(0), from->bytes_at(0), to->bytes());
      };
      array = next->second;
    }
    return [copy, run = graphs_->bind(read, written), inputs, outputs] {
      copy();
      run();
    };
  }

 private:
  // Views of arrays, one per array.
  class Views {
   public:
    Arrays of(Arrays arrays) {
      for (auto& [name, array] : arrays) {
        if (array->device() == nullptr) continue;
        auto& view = views_[array.get()];
        if (view == nullptr) {
          view = std::make_shared<Tensor>(array->type(), array->shape(), array->address(), array);
        }
        array = view;
      }
      return arrays;
    }

   private:
    std::map<const Tensor*, Array> views_;
  };

  std::unique_ptr<Graphs> graphs_;
};

// Where the arrays of a test's batch are.
enum class Place {
  kHost,
  kDevice,    // sizes as on the host
  kBuckets,   // sizes are powers of two, as on a GPU
  kTwoCopies  // likewise, and caches have two copies
};

inline ArrayPlace array_place(Place place, std::int64_t spare_slots, std::int64_t max_source = 0) {
  if (place == Place::kHost) return {nullptr, {spare_slots}};
  return {std::make_shared<DeviceMemory>(1),
          {spare_slots, place != Place::kDevice, max_source},
          place != Place::kTwoCopies};
}

inline std::unique_ptr<Graphs> placed(std::unique_ptr<Graphs> graphs, Place place) {
  if (place == Place::kHost) return graphs;
  return std::make_unique<DeviceGraphs>(std::move(graphs));
}

}  // namespace translate_trt::runtime
