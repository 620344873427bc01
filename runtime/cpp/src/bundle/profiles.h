// Optimization profiles of engines, and the buckets that they form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace translate_trt::runtime {

// Largest sizes B, R, D and U of the step inputs of rules 13 to 15 (docs/beam-search.md).
struct ChangeSizes {
  std::int64_t marked_tokens = 0, sampled_ranks = 0, tail_tokens = 0, constraint_tokens = 0;

  bool empty() const {
    return marked_tokens == 0 && sampled_ranks == 0 && tail_tokens == 0 && constraint_tokens == 0;
  }
};

// An optimization profile. That of an encoder is for all shapes up to these sizes; that of a step
// is for exactly this shape, but for the inputs of `changes`.
struct Profile {
  std::int64_t batch, source_length;
  std::int64_t slots = 0;    // cache slots that a step reads, P; 0 for an encoder
  ChangeSizes changes = {};  // empty: these inputs are empty
};

std::string name_of(const Profile& profile);  // formats as in "64x48" or "64x48 with 128 slots"

using Profiles = std::vector<Profile>;  // by profile index

// Source tokens of the largest profile: the maximum of batch x source_length.
std::int64_t largest_source(const Profiles& profiles);

// Index of the smallest profile for that many sentences of that length. Throws a backend error if
// no profile is large enough.
std::size_t smallest_profile(const Profiles& profiles, std::int64_t sentences,
                             std::int64_t longest);

// The profiles of a step engine: every combination of a bucket, a batch size N with a source length
// S, and a number P of cache slots that the step reads; of an engine with the inputs of rules 13 to
// 15 each twice, for steps without and with these inputs.
class StepProfiles {
 public:
  // capacity: slots of a cache. has_changes: whether the step has the inputs of rules 13 to 15.
  // Throws a bundle error if a combination is missing, or if no profile reads a whole cache.
  StepProfiles(const Profiles& profiles, std::int64_t capacity, bool has_changes);

  const Profiles& buckets() const { return buckets_; }  // without slots
  const Profile& profile(std::size_t index) const { return profiles_[index]; }

  std::int64_t fewest_slots() const { return slots_.front(); }

  // Smallest number of slots that a profile has and that is at least `needed`.
  std::int64_t slots_for(std::int64_t needed) const;

  // Index of the profile of a bucket with a number of slots that a profile has. with_changes: for
  // steps with the inputs of rules 13 to 15.
  std::size_t index(std::size_t bucket, std::int64_t slots, bool with_changes = false) const;

  // Largest sizes of these inputs, which all profiles with them have.
  const ChangeSizes& changes() const { return changes_; }

 private:
  std::size_t find(const Profile& bucket, std::int64_t slots, bool with_changes) const;

  Profiles profiles_, buckets_;
  std::vector<std::int64_t> slots_;  // ascending
  ChangeSizes changes_;
};

}  // namespace translate_trt::runtime
