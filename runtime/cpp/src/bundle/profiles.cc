#include "bundle/profiles.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "base/errors.h"
#include "base/utf8.h"

namespace translate_trt::runtime {

namespace {

bool same_bucket(const Profile& left, const Profile& right) {
  return left.batch == right.batch && left.source_length == right.source_length;
}

bool same_sizes(const ChangeSizes& left, const ChangeSizes& right) {
  return left.marked_tokens == right.marked_tokens && left.sampled_ranks == right.sampled_ranks &&
         left.tail_tokens == right.tail_tokens && left.constraint_tokens == right.constraint_tokens;
}

}  // namespace

std::string name_of(const Profile& profile) {
  const std::string bucket =
      std::to_string(profile.batch) + "x" + std::to_string(profile.source_length);
  return profile.slots > 0 ? bucket + " with " + std::to_string(profile.slots) + " slots" : bucket;
}

std::int64_t largest_source(const Profiles& profiles) {
  std::int64_t most = 0;
  for (const Profile& one : profiles) most = std::max(most, one.batch * one.source_length);
  return most;
}

std::size_t smallest_profile(const Profiles& profiles, std::int64_t sentences,
                             std::int64_t longest) {
  const auto cost = [&](std::size_t index) {
    return std::tuple(profiles[index].batch, profiles[index].source_length);
  };
  std::size_t best = profiles.size();
  for (std::size_t index = 0; index < profiles.size(); ++index) {
    if (profiles[index].batch < sentences || profiles[index].source_length < longest) continue;
    if (best == profiles.size() || cost(index) < cost(best)) best = index;
  }
  if (best < profiles.size()) return best;
  std::vector<std::string> names;
  std::transform(profiles.begin(), profiles.end(), std::back_inserter(names),
                 [](const Profile& profile) { return name_of(profile); });
  throw backend_error("no profile of the engines takes " + std::to_string(sentences) +
                      " sentences of " + std::to_string(longest) + " tokens; they have " +
                      join(names, ", ") + ". Lower batch_tokens, or export with other --profiles.");
}

StepProfiles::StepProfiles(const Profiles& profiles, std::int64_t capacity, bool has_changes)
    : profiles_(profiles) {
  for (const Profile& one : profiles_) {
    if (!one.changes.empty()) {
      if (changes_.empty()) changes_ = one.changes;
      if (same_sizes(changes_, one.changes)) continue;
      throw bundle_error(
          "profiles of the step engine differ in the sizes of their inputs; export the bundle "
          "again.");
    }
    const auto is_known = [&](const Profile& known) { return same_bucket(known, one); };
    if (std::none_of(buckets_.begin(), buckets_.end(), is_known)) {
      buckets_.push_back({one.batch, one.source_length});
    }
    slots_.push_back(one.slots);
  }
  std::sort(slots_.begin(), slots_.end());
  slots_.erase(std::unique(slots_.begin(), slots_.end()), slots_.end());
  if (slots_.empty() || (slots_.front() < 1 && capacity > 0) || slots_.back() != capacity) {
    throw bundle_error("the profiles of the step engine read up to " +
                       std::to_string(slots_.empty() ? 0 : slots_.back()) + " of the " +
                       std::to_string(capacity) + " cache slots; export the bundle again.");
  }
  for (const Profile& bucket : buckets_) {
    for (const std::int64_t slots : slots_) {
      for (const bool with_changes : {false, true}) {
        if (find(bucket, slots, with_changes) < profiles_.size()) continue;
        if (with_changes && !has_changes) continue;
        throw bundle_error("the step engine has no profile for " +
                           name_of({bucket.batch, bucket.source_length, slots}) +
                           (with_changes ? " and the inputs of all options" : "") +
                           "; export the bundle again.");
      }
    }
  }
}

std::int64_t StepProfiles::slots_for(std::int64_t needed) const {
  const auto found = std::lower_bound(slots_.begin(), slots_.end(), needed);
  return found == slots_.end() ? slots_.back() : *found;
}

std::size_t StepProfiles::index(std::size_t bucket, std::int64_t slots, bool with_changes) const {
  return find(buckets_[bucket], slots, with_changes);
}

std::size_t StepProfiles::find(const Profile& bucket, std::int64_t slots, bool with_changes) const {
  const auto found = std::find_if(profiles_.begin(), profiles_.end(), [&](const Profile& one) {
    return same_bucket(one, bucket) && one.slots == slots && one.changes.empty() != with_changes;
  });
  return static_cast<std::size_t>(found - profiles_.begin());
}

}  // namespace translate_trt::runtime
