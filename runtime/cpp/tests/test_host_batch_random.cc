// Sentences enter and leave at random, and each must behave as if it were alone.

#include <optional>
#include <string>
#include <vector>

#include "check.h"
#include "checked_batch.h"
#include "random.h"

namespace translate_trt::runtime {

namespace {

struct RandomCase {
  const char* name;
  int beams;
  std::optional<std::int64_t> fixed_slots;
  std::int64_t spare_slots;
  Type cache_type = Type::kFloat32;
  std::optional<ShortlistSize> shortlist = {};
  bool attention = false;
  Place place = Place::kHost;
  std::int64_t recurrent_size = 0;

  // Buckets are seldom left, and large arrays take time.
  int rounds() const {
    const bool is_large = spare_slots > 1000 || (shortlist && shortlist->each > 1000);
    return place == Place::kBuckets ? 120 : is_large ? 15 : 45;
  }
};

constexpr std::int64_t kLongestTranslation = 40;
constexpr std::int64_t kLongestSource = 61;

DecoderShape shape_of(const RandomCase& one) {
  DecoderShape shape = digest_shape();
  shape.attention = one.attention;
  if (one.fixed_slots) shape.form.beams = one.beams;
  shape.form.slots = one.fixed_slots;
  shape.form.cache_type = one.cache_type;
  shape.form.shortlist = one.shortlist;
  shape.recurrent_size = one.recurrent_size;
  return shape;
}

std::vector<Arrival> random_arrivals(CheckedBatch& batch, Random& random, std::size_t most) {
  std::vector<std::size_t> sizes(random.below(most + 1));
  const bool has_long = random.chance(0.1);
  for (std::size_t& size : sizes) size = 1 + random.below(has_long ? 60 : 20);
  std::vector<Arrival> made = batch.arrivals(sizes);
  for (Arrival& one : made) {
    one.max_length = random.between(1, kLongestTranslation);
    one.options.min_length = static_cast<int>(random.below(20));
    one.options.length_penalty = static_cast<double>(random.below(4));
    if (random.chance(0.1)) one.source[0] = kNanSource;
    if (random.chance(0.5)) one.options.length_penalty_form = LengthPenaltyForm::kLength;
    one.options.num_hypotheses = static_cast<int>(random.below(5));
    one.options.early_stopping = random.chance(0.5);
    if (random.chance(0.7)) continue;
    for (std::size_t i = 0; i < 1 + random.below(8); ++i) {
      const auto token = static_cast<std::int64_t>(3 + random.below(100));
      one.prefix.push_back(random.chance(0.3)   ? kFree
                           : random.chance(0.5) ? unscored(token)
                                                : token);
    }
  }
  return made;
}

// Rows to keep: usually all unfinished ones, like `Search`; sometimes fewer.
Rows random_keep(const CheckedBatch& batch, Random& random) {
  const double share = random.chance(0.7) ? 1 : random.chance(0.9) ? 0.6 : 0;
  Rows keep;
  for (const std::int64_t row : batch.live()) {
    if (random.chance(share)) keep.push_back(row);
  }
  return keep;
}

void test_at_random(const RandomCase& one) {
  SearchOptions options;
  options.beam_size = one.beams;
  options.return_attention = one.attention;
  Random random(20240607);
  const int failures_before = failures;
  CheckedBatch batch(shape_of(one), options, one.spare_slots, one.place, kLongestSource);
  for (int round = 0; round < one.rounds() && failures == failures_before; ++round) {
    // Sometimes few, so that batches of one sentence and empty batches occur.
    const std::size_t most = random.chance(0.3) ? 1 : 7;
    const Rows keep = random_keep(batch, random);
    batch.update(keep, random_arrivals(batch, random, most));
    // Some after all sentences are done. A step tells which rows have NaN.
    const std::int64_t steps = random.between(batch.log.nan_rows.empty() ? 0 : 1, 7);
    for (std::int64_t i = 0; i < steps && batch.rows() > 0; ++i) {
      batch.step();
      for (const std::int64_t row : batch.live()) {
        if (random.chance(0.1)) batch.drop(row, random.between(0, one.beams - 1));
      }
      const Rows live = batch.live();
      if (!live.empty() && random.chance(0.1)) batch.retire(live[random.below(live.size())]);
    }
    if (failures != failures_before) std::cerr << one.name << ", round " << round << "\n";
  }
}

}  // namespace

void test_host_batch_random() {
  const ShortlistSize shortlist = {5, 3};
  const std::int64_t slots = 3 * kLongestTranslation;
  for (const RandomCase& one : {
           RandomCase{"one beam", 1, std::nullopt, 0},
           RandomCase{"three beams", 3, std::nullopt, 0},
           RandomCase{"spare slots", 2, std::nullopt, 64},
           RandomCase{"arrays in memory of others", 1, std::nullopt, 6000},
           RandomCase{"float16", 2, std::nullopt, 0, Type::kFloat16},
           RandomCase{"shortlist", 2, std::nullopt, 16, Type::kBFloat16, shortlist, true},
           RandomCase{"shortlists in memory of others", 1, std::nullopt, 0, Type::kFloat32,
                      ShortlistSize{5, 3000}},
           RandomCase{"fixed slots", 3, slots, 0},
           RandomCase{"fixed slots and all else", 1, slots, 64, Type::kFloat16, shortlist, true},
           RandomCase{"device", 3, std::nullopt, 0, Type::kFloat32, {}, false, Place::kDevice},
           RandomCase{"buckets", 3, std::nullopt, 0, Type::kFloat16, {}, false, Place::kBuckets},
           RandomCase{"buckets and all else", 2, std::nullopt, 16, Type::kBFloat16, shortlist, true,
                      Place::kBuckets},
           RandomCase{"two copies", 2, std::nullopt, 0, Type::kFloat16, shortlist, true,
                      Place::kTwoCopies},
           RandomCase{
               "fixed slots on a device", 3, slots, 0, Type::kFloat32, {}, true, Place::kTwoCopies},
           RandomCase{"recurrent", 3, std::nullopt, 0, Type::kFloat32, {}, false, Place::kHost, 5},
           RandomCase{"recurrent and all else", 2, std::nullopt, 16, Type::kFloat16, shortlist,
                      true, Place::kHost, 3},
           RandomCase{"recurrent on a device",
                      3,
                      std::nullopt,
                      0,
                      Type::kFloat32,
                      {},
                      false,
                      Place::kDevice,
                      5},
           RandomCase{"recurrent in buckets",
                      2,
                      std::nullopt,
                      0,
                      Type::kFloat32,
                      {},
                      true,
                      Place::kBuckets,
                      4},
       }) {
    test_at_random(one);
  }
}

}  // namespace translate_trt::runtime
