// The small arrays of a batch in device memory: requests, state without the caches, and results.
//
// Graphs read and write them on the device. The batch reads and edits copies in page-locked host
// memory, with the same layout: what a step returns lies together, so that it arrives in one copy,
// and the ancestry, which the batch seldom reads, lies apart.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "backends/device_memory.h"
#include "backends/tensor.h"

namespace translate_trt::runtime {

class StateMirror {
 public:
  // Replaces the arrays by views of the host copy, with the same contents, and copies them to the
  // device.
  //
  // now: request and state of the next step; arrays on the device are left out.
  // other: the state that a step writes; the two change places with every step.
  // results: outputs other than the state.
  StateMirror(std::shared_ptr<DeviceMemory> device, Arrays& now, Arrays& other, Arrays& results);

  // The array on the device that a view of the host copy stands for; an array on the device itself.
  Array on_device(const Array& array) const;

  // Notes that the batch has edited the request or the state of the next step.
  void edited() { is_edited_ = true; }

  // Copies edits to the device.
  void send();

  // Ends a step: exchanges the two copies of the state and copies its results to the host, without
  // the ancestry.
  void receive();

  // Copies the ancestry to the host, unless the host copy is current.
  void receive_ancestry();

 private:
  // Bytes of the layout.
  struct Range {
    std::size_t begin = 0, end = 0;
  };

  void copy_in(Range range);
  void copy_out(Range range);

  std::shared_ptr<DeviceMemory> device_;
  std::shared_ptr<std::byte> host_;  // page-locked
  std::shared_ptr<Tensor> block_;    // on the device
  std::map<const Tensor*, Array> twins_;
  Range request_, ancestry_[2], state_[2], results_;
  std::size_t turn_ = 0;  // index of the state of the next step
  bool is_edited_ = false, has_ancestry_ = true;
};

}  // namespace translate_trt::runtime
