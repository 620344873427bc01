// Optimization profiles of engines, and the buckets that they form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace translate_trt::runtime {

// An optimization profile. That of an encoder is for all shapes up to these sizes; that of a step
// is for exactly this shape.
struct Profile {
  std::int64_t batch, source_length;
  std::int64_t slots = 0;  // cache slots that a step reads, P; 0 for an encoder
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
// S, and a number P of cache slots that the step reads.
class StepProfiles {
 public:
  // capacity: slots of a cache. Throws a bundle error if a combination is missing, or if no profile
  // reads a whole cache.
  StepProfiles(const Profiles& profiles, std::int64_t capacity);

  const Profiles& buckets() const { return buckets_; }  // without slots
  const Profile& profile(std::size_t index) const { return profiles_[index]; }

  std::int64_t fewest_slots() const { return slots_.front(); }

  // Smallest number of slots that a profile has and that is at least `needed`.
  std::int64_t slots_for(std::int64_t needed) const;

  // Index of the profile of a bucket with a number of slots that a profile has.
  std::size_t index(std::size_t bucket, std::int64_t slots) const;

 private:
  std::size_t find(const Profile& bucket, std::int64_t slots) const;

  Profiles profiles_, buckets_;
  std::vector<std::int64_t> slots_;  // ascending
};

}  // namespace translate_trt::runtime
