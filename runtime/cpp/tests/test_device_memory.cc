// Arrays on a GPU, with a fake of CUDA's driver library.

#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backends/settings.h"
#include "backends/state_mirror.h"
#include "backends/tensor.h"
#include "base/platform.h"
#include "check.h"

#ifdef TRANSLATE_TRT_ONNXRUNTIME
#include "backends/onnxruntime_providers.h"
#endif
#include "decoder_shape.h"
#include "device_graphs.h"
#include "fake_cuda_driver/fake_driver.h"

namespace translate_trt::runtime {

namespace {

std::shared_ptr<DeviceMemory> make_device(int gpu = 0) {
  return std::make_shared<DeviceMemory>(gpu);
}

std::vector<std::int64_t> numbers(std::size_t count, std::int64_t first = 0) {
  std::vector<std::int64_t> made(count);
  std::iota(made.begin(), made.end(), first);
  return made;
}

std::vector<std::int64_t> read(const Tensor& tensor) {
  std::vector<std::int64_t> found(tensor.size());
  tensor.device()->copy_out(found.data(), tensor.address(), tensor.bytes());
  return found;
}

void test_copies() {
  const auto device = make_device();
  const auto pool = std::make_shared<BlockPool>(device);
  const auto make = [&](std::vector<std::int64_t> shape) {
    return std::make_shared<Tensor>(Type::kInt64, std::move(shape), pool);
  };
  const auto from = make({4, 3}), to = make({4, 5});
  CHECK(read(*from) == std::vector<std::int64_t>(12));  // zeros
  auto values = numbers(12, 1);
  device->copy_in(from->address(), values.data(), from->bytes());
  values.assign(12, 77);  // pageable memory may change at once
  copy_blocks(*to, {to->address(), 40}, *from, {from->address(), 24}, 16, 4);
  to->clear(2);
  CHECK(read(*to) ==
        std::vector<std::int64_t>({1, 2, 0, 0, 0, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 10, 11, 0, 0, 0}));
  const Tensor rows(from, 1, 2);
  CHECK(read(rows) == numbers(6, 4) && rows.shape() == std::vector<std::int64_t>({2, 3}));
}

void test_the_host_has_no_access() {
  const auto pool = std::make_shared<BlockPool>(make_device());
  const auto here = std::make_shared<Tensor>(Type::kInt64, std::vector<std::int64_t>{4});
  const auto there = std::make_shared<Tensor>(Type::kInt64, std::vector<std::int64_t>{4}, pool);
  const auto refused = [](const auto& access) {
    try {
      access();
    } catch (const std::logic_error&) {
      return true;
    }
    return false;
  };
  CHECK(refused([&] { there->row<std::int64_t>(); }));
  CHECK(refused([&] { there->bytes_at(0); }));
  CHECK(refused([&] { Tensor(there, 1, 2).row<std::int64_t>(); }));
  CHECK(refused(
      [&] { copy_blocks(*here, {here->address(), 8}, *there, {there->address(), 8}, 8, 1); }));
}

void test_blocks_are_reused_and_freed() {
  fake_cuda() = {};
  {
    const auto pool = std::make_shared<BlockPool>(make_device());
    for (int i = 0; i < 5; ++i) {
      const Tensor one(Type::kFloat16, {1000}, pool);
      const Tensor two(Type::kFloat16, {900}, pool);
    }
    CHECK(fake_cuda().made["memory"] == 2);
    const Tensor empty(Type::kFloat16, {0}, pool);
    const Tensor large(Type::kFloat16, {5000}, pool);
    CHECK(fake_cuda().alive["stream"] == 1 && fake_cuda().threads.empty());
  }
  CHECK(fake_cuda().left() == 0 && fake_cuda().violations.empty());
}

void test_memory_runs_out() {
  const auto pool = std::make_shared<BlockPool>(make_device());
  fake_cuda().memory = 1000;
  bool is_refused = false;
  try {
    const Tensor tensor(Type::kFloat32, {1000}, pool);
  } catch (const std::bad_alloc&) {
    is_refused = true;
  }
  fake_cuda().memory = FakeCuda().memory;
  CHECK(is_refused);
  const Tensor tensor(Type::kFloat32, {1000}, pool);
}

void test_no_gpu() {
  CHECK(contains(thrown([] { make_device(2); }),
                 "TT_BACKEND_ERROR there is no GPU cuda:2; this process sees 2, which begin"));
#if defined(__linux__)  // others say it in another way, and have no library of this name
  CHECK(contains(thrown([] { DeviceMemory(0, "/nowhere/libcuda.so.1"); }),
                 "TT_BACKEND_ERROR no NVIDIA GPU can be used: /nowhere/libcuda.so.1: cannot open"));
  CHECK(contains(thrown([] { DeviceMemory(0, "libc.so.6"); }),
                 "TT_BACKEND_ERROR libc.so.6 is no CUDA driver that this library can use"));
#endif
}

void test_the_mirror() {
  const auto device = make_device();
  const auto pool = std::make_shared<BlockPool>(device);
  const auto filled = [](std::vector<std::int64_t> shape, std::int64_t value) {
    const auto made = std::make_shared<Tensor>(Type::kInt64, std::move(shape));
    std::fill_n(made->row<std::int64_t>(), made->size(), value);
    return made;
  };
  Arrays now = {{"forced_tokens", filled({2}, 1)},
                {"ancestry", filled({2, 3}, 2)},
                {"tokens", filled({2, 2}, 3)}};
  Arrays other = {{"ancestry", filled({2, 3}, 4)}, {"tokens", filled({2, 2}, 5)}};
  Arrays results = {{"parents", filled({2, 2}, 6)}};
  const auto cache = std::make_shared<Tensor>(Type::kInt64, std::vector<std::int64_t>{2}, pool);
  now["self_key_0"] = cache;
  StateMirror mirror(device, now, other, results);
  CHECK(mirror.on_device(cache) == cache && now.at("self_key_0") == cache);
  const auto first = [](const Array& array) { return array->row<std::int64_t>()[0]; };
  const auto there = [&](const Array& array) { return read(*mirror.on_device(array))[0]; };
  const auto write_there = [&](const Array& array, std::int64_t value) {
    const std::vector<std::int64_t> values(array->size(), value);
    device->copy_in(mirror.on_device(array)->address(), values.data(), array->bytes());
  };
  for (const auto& [name, array] : now) {
    if (array != cache) CHECK(first(array) == there(array));
  }
  CHECK(there(other.at("tokens")) == 5 && there(results.at("parents")) == 6);

  // A step writes the other state and the results.
  write_there(other.at("tokens"), 50);
  write_there(other.at("ancestry"), 40);
  write_there(results.at("parents"), 60);
  mirror.receive();
  CHECK(first(other.at("tokens")) == 50 && first(results.at("parents")) == 60);
  CHECK(first(other.at("ancestry")) == 4);  // only on request
  // An edit leaves the ancestry on the device as it is, until it has been received.
  now.at("forced_tokens")->row<std::int64_t>()[0] = 10;
  other.at("tokens")->row<std::int64_t>()[0] = 51;
  mirror.send();  // without a note of the edit
  CHECK(there(now.at("forced_tokens")) == 1);
  mirror.edited();
  mirror.send();
  CHECK(there(now.at("forced_tokens")) == 10 && there(other.at("tokens")) == 51);
  CHECK(there(other.at("ancestry")) == 40);
  mirror.receive_ancestry();
  CHECK(first(other.at("ancestry")) == 40);
  other.at("ancestry")->row<std::int64_t>()[0] = 41;
  mirror.edited();
  mirror.send();
  CHECK(there(other.at("ancestry")) == 41);
  // The next step writes the first state.
  write_there(now.at("tokens"), 30);
  mirror.receive();
  CHECK(first(now.at("tokens")) == 30 && first(now.at("ancestry")) == 2);
}

void test_buckets() {
  const ArraySizes exact = {64};
  CHECK(exact.rows(5) == 5 && exact.source(9) == 16 && exact.slots(17) == 96);
  const ArraySizes buckets = {0, true, 50};
  CHECK(buckets.rows(0) == 0 && buckets.rows(1) == 1 && buckets.rows(5) == 8);
  CHECK(buckets.source(1) == 16 && buckets.source(17) == 32 && buckets.source(33) == 50);
  CHECK(buckets.slots(1) == 32 && buckets.slots(33) == 64);
  CHECK(buckets.most_slots(33) == 128 && exact.most_slots(17) == 112);
}

void test_devices() {
  CHECK(read_device("cpu").provider == Provider::kCpu);
  const SessionDevice cuda = read_device("cuda:3"), rtx = read_device("tensorrt-rtx");
  CHECK(cuda.provider == Provider::kCuda && cuda.index == 3);
  CHECK(rtx.provider == Provider::kTensorRtRtx && rtx.index == 0);
  for (const char* name :
       {"", "gpu", "cpu:0", "cuda:", "cuda:-1", "cuda:1x", "cuda:01", "tensorrt-rtx:1000"}) {
    CHECK(contains(thrown([&] { read_device(name); }), "write cpu, cuda, cuda:1 or tensorrt-rtx."));
  }
  CHECK(contains(thrown([] { read_device("tensorrt:1"); }),
                 "TT_OPTION_ERROR device is 'tensorrt:1', which is not supported: "));
}

#ifdef TRANSLATE_TRT_ONNXRUNTIME
void test_ranges_hold_all_buckets() {
  DecoderShape shape = {1, 1, 1, 1, false, {}};
  shape.form.shortlist = ShortlistSize{5, 3};
  const std::int64_t longest = 256, translation = 306;
  const SizeRange range = size_range(shape, longest, translation);
  const ArraySizes buckets = {0, true, longest};
  for (std::int64_t n = 1; n <= kMaxRtxRows; ++n) {
    CHECK(buckets.rows(n) >= range.smallest.n && buckets.rows(n) <= range.largest.n);
  }
  for (std::int64_t s = 1; s <= longest; ++s) {
    CHECK(buckets.source(s) >= range.smallest.s && buckets.source(s) <= range.largest.s);
  }
  for (std::int64_t p = 1; p <= kMaxRtxBeams * translation; ++p) {
    CHECK(buckets.slots(p) >= range.smallest.p && buckets.slots(p) <= range.largest.p);
  }
  CHECK(range.smallest.w == 5 + 3 * 16 && range.largest.w == 5 + 3 * 256);
  const SizeRange tiny = size_range(shape, 8, 4);  // sentences shorter than the smallest bucket
  CHECK(tiny.smallest.s == 8 && tiny.typical.s == 8 && tiny.largest.s == 8);
  CHECK(tiny.typical.p == 32 && tiny.largest.p == 32);
}
#endif

}  // namespace

void test_device_memory() {
  test_copies();
  test_the_host_has_no_access();
  test_blocks_are_reused_and_freed();
  test_memory_runs_out();
  test_no_gpu();
  test_the_mirror();
  test_buckets();
  test_devices();
#ifdef TRANSLATE_TRT_ONNXRUNTIME
  test_ranges_hold_all_buckets();
#endif
  CHECK(fake_cuda().left() == 0 && fake_cuda().violations.empty());
}

}  // namespace translate_trt::runtime
