// Batches on a device.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/options.h"
#include "check.h"
#include "core/search.h"
#include "engines/device_batch.h"
#include "gpu_fixture.h"
#include "translate_trt/cuda.h"

namespace translate_trt::runtime {

namespace {

// A backend of tracing engines by translate_trt/cuda.h, and what they were asked for.
struct Fixture : GpuFixture {
  EngineSettings settings = {kTracedEncoder, kTracedStep, 4, true};
  bool crashes = false;             // running an engine makes the GPU unusable
  std::vector<std::int64_t> slots;  // that steps have read, without repetitions in a row
  std::vector<std::pair<std::int64_t, std::int64_t>> encoded;  // N and S of the encoder's runs
  tt_cuda_engines engines = {};

  Fixture() {
    engines.struct_size = sizeof(engines);
    engines.context = this;
    engines.open = [](void* fixture, CUstream_st* stream, std::uint64_t, void** made) {
      *made = new Engines{*static_cast<Fixture*>(fixture), stream, {}};
      return tt_status{TT_OK};
    };
    engines.close = [](void* one) { delete static_cast<Engines*>(one); };
    engines.launch = [](void* one, const tt_launch* work) {
      return static_cast<Engines*>(one)->launch(*work);
    };
  }

  tt_device_functions functions() {
    tt_device_functions made = {};
    CHECK(tt_cuda_functions(&engines, &made) == TT_OK);
    return made;
  }

  std::unique_ptr<Backend> backend() { return backend(functions()); }

  std::unique_ptr<Backend> backend(const tt_device_functions& functions) {
    return std::make_unique<DeviceBackend>(
        functions, tracing_shape(), settings,
        [this](const std::string& message) { messages.push_back(message); });
  }

 private:
  struct Engines {
    Fixture& fixture;
    cuda::Stream stream;
    std::set<std::pair<std::int32_t, decltype(TracedTensors::addresses)>> ran;

    tt_status launch(const tt_launch& work) {
      TracedTensors tensors;
      for (std::size_t i = 0; i < work.tensor_count; ++i) {
        tensors.add(work.tensors[i].name, work.tensors[i].address, work.tensors[i].shape);
      }
      // As for torch targets, whose graphs are captured for the tensors of each step.
      if (ran.insert({work.profile, tensors.addresses}).second && is_capturing(stream)) {
        return tt_device_fail(TT_BACKEND_ERROR, "a step must have run before it is captured.");
      }
      const bool is_step = work.engine == TT_ENGINE_STEP;
      const cuda::Result result =
          enqueue(stream, [one = &fixture, is_step, tensors] { one->run(is_step, tensors); }, this);
      CHECK(result == cuda::kSuccess);
      return TT_OK;
    }
  };

  void run(bool is_step, const TracedTensors& tensors) {
    if (crashes) throw std::runtime_error("an illegal memory access");
    if (!is_step) encoded.emplace_back(tensors.rows, tensors.columns);
    if (is_step && (slots.empty() || slots.back() != tensors.slots)) slots.push_back(tensors.slots);
    is_step ? trace_step(tensors) : trace_encoder(tensors);
  }
};

Tokens tokens(const StepResults& results) { return results.back().tokens; }

template <class Work>
std::string error_of(const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

void test_rows_stay_where_they_are_as_far_as_they_can() {
  Fixture fixture;
  const auto backend = fixture.backend();
  const auto batch = backend->batch(greedy(), 2);
  CHECK(batch->rows() == 0);
  CHECK(batch->update({}, traced_sources({20, 12, 9, 7})) == std::pair(Rows(), Rows({0, 1, 2, 3})));
  CHECK(batch->rows() == 6);
  advance(*batch);
  CHECK(batch->update({1, 3}, traced_sources({5, 5, 5}, 21)) ==
        std::pair(Rows({1, 3}), Rows({0, 2, 4})));
  const StepResults& results = batch->step({});
  CHECK(tokens(results) == Tokens({21, 12, 22, 14, 23, results.back().tokens[5]}));
  batch->drain();
  CHECK(batch->update({1, 3, 4}, {}) == std::pair(Rows({1, 0, 2}), Rows()));
  CHECK(batch->rows() == 3);  // the bucket of three
  CHECK(tokens(batch->step({})) == Tokens({14, 12, 23}));
  batch->drain();
  CHECK(batch->update({2}, traced_sources({40, 30}, 31)) == std::pair(Rows({2}), Rows({0, 1})));
  CHECK(batch->rows() == 6);  // wider again
  const Tokens found = tokens(batch->step({}));
  CHECK(found[0] == 31 && found[1] == 32 && found[2] == 23);
}

void test_sentences_go_on_in_other_rows_and_buckets() {
  for (const std::size_t poll_every : {1, 2, 3, 4}) {
    Fixture fixture;
    fixture.settings.poll_every = poll_every;
    const auto backend = fixture.backend();
    search_in_all_buckets(*backend->batch(greedy(), 2));
    CHECK(fixture.cuda.calls["cuStreamBeginCapture"] <= 8);  // as many profiles have run
  }
}

// The steps of the device check that the ancestry has a column for every slot of the past.
void test_steps_read_more_slots_as_translations_grow() {
  for (const std::size_t poll_every : {1, 3, 4}) {
    Fixture fixture;
    fixture.settings.poll_every = poll_every;
    const auto backend = fixture.backend();
    const auto batch = backend->batch(greedy(), 2);
    batch->update({}, traced_sources({12, 9}));  // 3x16
    for (std::size_t steps = 0; steps < 30;) steps += batch->step({}).size();
    batch->drain();
    CHECK(fixture.slots == std::vector<std::int64_t>({8, 24, 96}));
    batch->update({0}, traced_sources({9}, 21));  // a new sentence beside a long one
    const Tokens found = tokens(batch->step({}));
    CHECK(found[0] == 11 && found[1] == 21);
    batch->drain();
    CHECK(fixture.slots == std::vector<std::int64_t>({8, 24, 96}));
    batch->update({1}, traced_sources({9}, 31));  // fewer slots again
    CHECK(tokens(batch->step({}))[1] == 21);
    batch->drain();
    CHECK(fixture.slots.back() < 96);
  }
}

void test_sentences_that_have_ended_need_no_slots() {
  Fixture fixture;
  fixture.settings.poll_every = 1;
  const auto backend = fixture.backend();
  const auto batch = backend->batch(greedy(), 2);
  batch->update({}, traced_sources({12, 9}, kShortToken));
  for (int step = 0; step < 10; ++step) batch->step({});
  batch->drain();
  CHECK(fixture.slots == std::vector<std::int64_t>({8, 24}));
}

void test_steps_do_not_read_slots_beyond_the_longest_translation() {
  Fixture fixture;
  fixture.settings.step_profiles = with_slots(kTracedEncoder, {6, 96});
  const auto backend = fixture.backend();
  const auto batch = backend->batch(greedy(), 2);
  batch->update({}, traced_sources({12, 9}, 11, 6));
  while (!batch->step({}).back().done[0]) continue;
  batch->drain();
  CHECK(fixture.slots == std::vector<std::int64_t>({6}));
}

void test_forced_steps_are_captured() {
  Fixture fixture;
  const auto backend = fixture.backend();
  const auto batch = backend->batch(greedy(), 2);
  batch->update({}, traced_sources({12, 9}));
  const Tokens forced = {50, kFree, kFree};
  for (int i = 0; i < 4; ++i) {
    const Tokens found = tokens(batch->step({forced}));
    CHECK(found[0] == 50 && found[1] == 12);
  }
  CHECK(fixture.cuda.calls["cuStreamBeginCapture"] == 1 &&
        fixture.cuda.calls["cuGraphLaunch"] == 3);
  batch->step({});
  batch->step({});
  CHECK(fixture.cuda.calls["cuStreamBeginCapture"] == 2 && fixture.messages.empty());
}

// The profiles of a step that has the inputs of rules 13 to 15.
Profiles with_changes(const Profiles& step) {
  Profiles all = step;
  for (Profile one : step) {
    one.changes.marked_tokens = 8;
    all.push_back(one);
  }
  return all;
}

void test_profiles_with_the_inputs_of_all_options() {
  const Profiles all = with_changes(kTracedStep);
  const std::int64_t capacity = kTracedStep.back().slots;
  const StepProfiles steps(all, capacity, true);
  const std::int64_t slots = steps.fewest_slots();
  const std::size_t plain = steps.index(1, slots), changed = steps.index(1, slots, true);
  CHECK(plain < kTracedStep.size() && changed == plain + kTracedStep.size());
  CHECK(steps.changes().marked_tokens == 8 && steps.buckets().size() < kTracedStep.size());
  const auto error = [&](const Profiles& profiles) {
    return error_of([&] { StepProfiles(profiles, capacity, true); });
  };
  CHECK(contains(error(kTracedStep), "slots and the inputs of all options; export the bundle"));
  Profiles differing = all;
  differing.back().changes.constraint_tokens = 8;
  CHECK(contains(error(differing), "differ in the sizes of their inputs"));
}

void test_exact_profiles_of_the_encoder() {
  Fixture any, exact;
  exact.settings.exact_encoder = true;
  exact.settings.encoder_profiles = {{1, 8}, {2, 8}, {4, 24}, {6, 48}, {1, 48}};
  for (Fixture* fixture : {&any, &exact}) {
    const auto backend = fixture->backend();
    search_in_all_buckets(*backend->batch(greedy(), 2));
  }
  using Shapes = std::vector<std::pair<std::int64_t, std::int64_t>>;
  CHECK(any.encoded[1] == std::pair(std::int64_t{4}, std::int64_t{24}));
  CHECK(exact.encoded == Shapes({{6, 48}, {4, 24}, {1, 48}}));
}

std::string error_of_profiles(const Profiles& encoder, const Profiles& step, bool exact = false) {
  Fixture fixture;
  fixture.settings.exact_encoder = exact;
  fixture.settings.encoder_profiles = encoder;
  fixture.settings.step_profiles = step;
  return error_of([&] { fixture.backend(); });
}

void test_profiles_that_do_not_fit_together() {
  CHECK(error_of_profiles(kTracedEncoder, kTracedStep).empty());
  CHECK(error_of_profiles({{6, 47}}, kTracedStep) ==
        "the encoder engine has no profile for 1x48; export the bundle again.");
  CHECK(error_of_profiles({{8, 48}}, kTracedStep).empty());
  CHECK(error_of_profiles({{8, 48}}, kTracedStep, true) ==
        "the encoder has a profile for 8x48, which fits no batch; export the bundle again.");
  CHECK(error_of_profiles({{6, 48}}, with_slots(kTracedEncoder, {8, 24})) ==
        "the profiles of the step engine read up to 24 of the 96 cache slots; export the bundle "
        "again.");
  CHECK(contains(error_of_profiles({{6, 48}}, kTracedEncoder), "read up to 0 of the 96"));
  CHECK(contains(error_of_profiles({{6, 48}}, {}), "read up to 0 of the 96"));
  Profiles some = kTracedStep;
  some.erase(some.begin() + 4);
  CHECK(error_of_profiles({{6, 48}}, some) ==
        "the step engine has no profile for 3x16 with 24 slots; export the bundle again.");
}

void test_idle_rows_are_done() {
  Fixture fixture;
  const auto backend = fixture.backend();
  const auto batch = backend->batch(greedy(), 2);
  batch->update({}, traced_sources({20, 12}));
  for (const StepResult& result : batch->step({})) {
    CHECK(result.done == std::vector<char>({0, 0, 1, 1, 1, 1}));
  }
  batch->retire(0);
  for (const StepResult& result : batch->drain()) CHECK(!result.done[0]);  // enqueued before
  CHECK(batch->step({}).front().done == std::vector<char>({1, 0, 1, 1, 1, 1}));
  batch->drain();
  CHECK(batch->update({1}, {}) == std::pair(Rows({0}), Rows()));
  CHECK(batch->step({}).front().done == std::vector<char>({0}));
}

void test_what_a_sentence_has_finished_with() {
  Fixture fixture;
  const auto backend = fixture.backend();
  const auto batch = backend->batch(greedy(), 2);
  Sources two = traced_sources({9, 9});
  two.max_lengths = {2, 7};
  batch->update({}, two);
  batch->step({});
  CHECK(batch->pool(0).lengths == Rows({2}) && batch->pool(0).scores.front() == -2);
  batch->step({});
  CHECK(batch->pool(1).lengths == Rows({7}));
  CHECK(batch->drain().empty());  // no steps are enqueued once all sentences are done
}

void test_what_became_nan_does_not_spread() {
  Fixture fixture;
  const auto backend = fixture.backend();
  const auto is_nan = [](float value) { return std::isnan(value); };
  const auto nan_rows = [&](const StepResults& results) {
    Rows rows;
    const auto& values = results.back().log_probs;
    for (std::size_t row = 0; row < values.size(); ++row) {
      if (is_nan(values[row]) && !results.back().done[row]) {
        rows.push_back(static_cast<std::int64_t>(row));
      }
    }
    return rows;
  };
  {
    const auto batch = backend->batch(greedy(), 2);
    Sources some = traced_sources({12, 15, 9});
    std::fill(some.tokens[1].begin(), some.tokens[1].end(), kNanToken);
    batch->update({}, some);  // 3x16
    CHECK(nan_rows(batch->step({})) == Rows({1}));
    batch->drain();
    batch->update({0, 1, 2}, traced_sources({20}, 21));  // 6x24: rows are repacked
    CHECK(nan_rows(batch->step({})) == Rows({1}));
    batch->drain();
    // A sentence with a shorter source and fewer steps takes its row.
    CHECK(batch->update({0, 2, 3}, traced_sources({4}, 31)).second == Rows({1}));
    CHECK(nan_rows(batch->step({})).empty());
    batch->drain();
    batch->update({0, 1}, {});  // 3x16
    CHECK(nan_rows(batch->step({})).empty());
    batch->drain();
    std::fill(some.tokens[0].begin(), some.tokens[0].end(), kNanToken);
    batch->update({}, some);
    CHECK(nan_rows(batch->step({})) == Rows({0, 1}));
    batch->drain();
  }
  const auto batch = backend->batch(greedy(), 2);
  batch->update({}, traced_sources({5, 5, 5}));
  CHECK(nan_rows(batch->step({})).empty());
  batch->drain();
}

void test_steps_ahead_must_be_fetched_first() {
  Fixture fixture;
  const auto backend = fixture.backend();
  const auto batch = backend->batch(greedy(), 2);
  batch->update({}, traced_sources({12, 12}));
  CHECK(batch->step({}).size() == 4);
  CHECK(contains(error_of([&] { batch->update({0}, {}); }), "steps are in flight"));
  CHECK(batch->drain().size() == 4 && batch->drain().empty());
  const Tokens forced = {50, kFree, kFree, kFree, kFree, kFree};
  const StepResults& results = batch->step({forced});
  CHECK(results.size() == 1 && tokens(results)[0] == 50 && tokens(results)[1] == 12);
  CHECK(batch->drain().empty());
  CHECK(tokens(batch->step({}))[0] == 11);  // free again
}

void test_no_steps_ahead_beyond_the_longest_translation() {
  Fixture fixture;
  const auto backend = fixture.backend();
  const auto batch = backend->batch(greedy(), 2);
  batch->update({}, traced_sources({12, 12}, 11, 6));
  CHECK(batch->step({}).size() == 4);
  CHECK(batch->step({}).size() == 4);  // two of which have no effect
  CHECK(batch->drain().empty());
}

void test_capacity_of_profiles() {
  Fixture fixture;
  const auto backend = fixture.backend();
  const auto batch = backend->batch(greedy(), 2);
  CHECK(batch->capacity_for(24) == 6 && batch->capacity_for(48) == 6);
  CHECK(batch->capacity_for(49) == 0);
  CHECK((Capacity{4096, 0, 0, 0, batch.get()}.more(9)) == 6);
  CHECK((Capacity{4096, 0, 0, 0, batch.get()}.more(49)) == 1);  // no profile is that long
  const std::string error =
      error_of([&] { batch->update({}, traced_sources({9, 9, 9, 9, 9, 9, 9})); });
  CHECK(contains(error, "takes 7 sentences of 9 tokens; they have 1x48, 3x16"));
  CHECK(batch->update({}, traced_sources({9})) ==
        std::pair(Rows(), Rows({0})));  // the failure changed nothing
}

void test_contexts_are_used_again_unless_they_failed() {
  Fixture fixture;
  const auto backend = fixture.backend();
  for (int i = 0; i < 3; ++i) run_steps(*backend, 1);
  CHECK(fixture.cuda.made["stream"] == 1 && fixture.cuda.calls["cuStreamBeginCapture"] == 1);
  fixture.crashes = true;
  CHECK(contains(error_of([&] { run_steps(*backend, 1); }), "an illegal memory access"));
  CHECK(fixture.cuda.alive["stream"] == 0);
  fixture.crashes = fixture.cuda.is_lost = false;
  run_steps(*backend, 1);
  CHECK(fixture.cuda.made["stream"] == 2);
}

std::uint64_t free_bytes;  // of the device in the tests below

tt_device_functions with_memory(Fixture& fixture) {
  tt_device_functions functions = fixture.functions();
  functions.memory = [](void*, uint64_t* free, uint64_t* total) {
    if (free_bytes == 0) return tt_device_fail(TT_BACKEND_ERROR, "the device is lost.");
    *free = free_bytes, *total = 24'000'000'000;
    return tt_status{TT_OK};
  };
  return functions;
}

void test_memory_is_asked_before_it_is_allocated() {
  Fixture fixture;
  fixture.settings.scratch_bytes = 3'000'000;
  const ContextMemory each = context_memory(tracing_shape(), fixture.settings);
  const std::uint64_t size = each.device + 3'000'000;
  CHECK(each.device > 0 && each.pinned > 0);
  const auto backend = fixture.backend(with_memory(fixture));
  free_bytes = 4 * size;
  CHECK(backend->fitting_batches(2, 2) == 2 && fixture.messages.empty());
  free_bytes = 4 * size - 1;
  CHECK(backend->fitting_batches(2, 2) == 1 && backend->fitting_batches(3, 2) == 1);
  CHECK(contains(fixture.messages.front(), "memory for 1 of 2 batches per worker"));
  free_bytes = 2 * size - 1;
  CHECK(contains(error_of([&] { backend->fitting_batches(2, 2); }),
                 "of 24000 MB are free, and 2 workers need "));
  CHECK(backend->fitting_batches(1, 2) == 1);
  free_bytes = size - 1;
  const std::string error = error_of([&] { backend->batch(greedy(), 2); });
  CHECK(contains(error, " are free, and a batch needs "));
  CHECK(contains(error, "3 MB of scratch memory for the engines). Lower workers"));
  free_bytes = 0;
  CHECK(error_of([&] { backend->batch(greedy(), 2); }) == "the device is lost.");
  CHECK(fixture.cuda.made["stream"] == 0);
  free_bytes = size;
  CHECK(backend->batch(greedy(), 2)->update({}, traced_sources({9})).second == Rows({0}));
}

void test_functions_of_an_older_header() {
  Fixture fixture;
  free_bytes = 1;
  tt_device_functions older = with_memory(fixture);
  CHECK(complete(older).memory != nullptr);
  older.struct_size = offsetof(tt_device_functions, memory);
  const tt_device_functions functions = complete(older);
  CHECK(functions.memory == nullptr && functions.replay == older.replay);
  CHECK(functions.struct_size == sizeof(functions));
}

void test_what_is_on_its_way_is_not_overwritten() {
  Fixture fixture;
  Device device(fixture.functions());
  Upload upload(device, 256);
  const Address second = device.allocate(256);
  std::byte* pinned = device.pin(256);
  const std::vector<std::int64_t> fives(32, 5), sixes(32, 6);
  upload.send(fives.data(), 256);
  device.copy(second, upload.target(), 256);
  upload.send(sixes.data(), 256);
  device.copy_out(pinned, second, 256);
  device.wait(device.record());
  CHECK(*reinterpret_cast<std::int64_t*>(pinned) == 5);
}

}  // namespace

void test_device_batch() {
  test_rows_stay_where_they_are_as_far_as_they_can();
  test_sentences_go_on_in_other_rows_and_buckets();
  test_steps_read_more_slots_as_translations_grow();
  test_sentences_that_have_ended_need_no_slots();
  test_steps_do_not_read_slots_beyond_the_longest_translation();
  test_forced_steps_are_captured();
  test_profiles_with_the_inputs_of_all_options();
  test_profiles_that_do_not_fit_together();
  test_exact_profiles_of_the_encoder();
  test_idle_rows_are_done();
  test_what_a_sentence_has_finished_with();
  test_what_became_nan_does_not_spread();
  test_steps_ahead_must_be_fetched_first();
  test_no_steps_ahead_beyond_the_longest_translation();
  test_capacity_of_profiles();
  test_contexts_are_used_again_unless_they_failed();
  test_memory_is_asked_before_it_is_allocated();
  test_functions_of_an_older_header();
  test_what_is_on_its_way_is_not_overwritten();
}

}  // namespace translate_trt::runtime
