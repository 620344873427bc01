#include "engines/stream_context.h"

#include <algorithm>
#include <exception>
#include <tuple>
#include <utility>

#include "core/errors.h"
#include "text/utf8.h"

namespace translate_trt::runtime {

void LogOnce::operator()(const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    if (!told_.insert(message).second) return;
  }
  log_(message);
}

StreamContext::StreamContext(const tt_device_functions& functions, const Contract& contract,
                             const EngineSettings& settings, LogOnce& log)
    : device_(functions),
      contract_(contract),
      settings_(settings),
      log_(log),
      buffers_(device_, contract, settings.profiles,
               std::max<std::size_t>(2, settings.poll_every)) {
  const std::size_t attention = buffers_.attention_bytes() * buffers_.ring_size();
  for (const std::size_t turn : {0, 1}) {
    results_[turn] = device_.pin(buffers_.results_bytes());
    if (attention > 0) attention_[turn] = device_.pin(attention);
  }
}

std::size_t StreamContext::bucket(std::int64_t sentences, std::int64_t longest) const {
  const Profiles& all = profiles();
  const auto cost = [&](std::size_t index) {
    return std::tuple(all[index].batch, all[index].source_length);
  };
  std::size_t best = all.size();
  for (std::size_t index = 0; index < all.size(); ++index) {
    if (all[index].batch < sentences || all[index].source_length < longest) continue;
    if (best == all.size() || cost(index) < cost(best)) best = index;
  }
  if (best < all.size()) return best;
  std::vector<std::string> names;
  std::transform(all.begin(), all.end(), std::back_inserter(names),
                 [](const Profile& profile) { return name_of(profile); });
  throw backend_error("no profile of the engines takes " + std::to_string(sentences) +
                      " sentences of " + std::to_string(longest) + " tokens; they have " +
                      join(names, ", ") + ". Lower batch_tokens, or export with other --profiles.");
}

Sizes StreamContext::sizes(std::size_t bucket) const {
  Sizes sizes = buffers_.sizes();
  sizes.n = profiles()[bucket].batch;
  sizes.s = profiles()[bucket].source_length;
  return sizes;
}

// The first round of a bucket is not captured: TensorRT must have run with its shapes before a
// capture.
void StreamContext::round(std::size_t bucket) {
  if (settings_.cuda_graphs && ran_.count(bucket) > 0 && rounds_.count(bucket) == 0) {
    rounds_[bucket] = captured(bucket);
  }
  const auto found = rounds_.find(bucket);
  if (found != rounds_.end() && found->second != nullptr) {
    device_.replay(found->second);
  } else {
    steps(bucket, poll_every());
  }
  ran_.insert(bucket);
}

void StreamContext::steps(std::size_t bucket, std::size_t count) {
  const Sizes sizes = this->sizes(bucket);
  for (std::size_t index = 0; index < count; ++index) {
    const std::size_t entry = index % buffers_.ring_size();
    device_.launch(TT_ENGINE_STEP, bucket, buffers_.step_tensors(entry, sizes));
  }
  if (const std::size_t end = count % buffers_.ring_size()) buffers_.copy_to_first(end);
}

DeviceGraph StreamContext::captured(std::size_t bucket) {
  try {
    return device_.capture([&] { steps(bucket, poll_every()); });
  } catch (const Error& error) {
    log_("steps of " + name_of(profiles()[bucket]) +
         " run without a CUDA graph, which is slower: " + error.what());
    return nullptr;
  }
}

}  // namespace translate_trt::runtime
