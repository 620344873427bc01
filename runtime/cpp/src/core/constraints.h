// Constraints: phrases that a translation must have (rule 15 of docs/beam-search.md;
// runtime/constraints.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "backends/backend.h"
#include "text/tokenizer.h"

namespace translate_trt::runtime {

// What a hypothesis has of its constraints.
class Reading {
 public:
  // constraints: phrases that are not empty, and outlive the reading; equal ones must occur as
  // often.
  explicit Reading(const std::vector<Tokens>& constraints)
      : constraints_(&constraints), closed_(constraints.size()), open_(constraints.size()) {}

  // Reads more tokens of the hypothesis.
  void read(const Tokens& tokens);

  // The progress of the hypothesis with one more token.
  std::size_t progress_with(std::int64_t token) const;

  // Whether the hypothesis lacks a constraint.
  bool is_open() const { return open_ > 0; }

  // Number of tokens of the constraints that it has.
  std::size_t met() const { return met_; }

 private:
  bool begins_constraint() const;
  std::size_t close_longest();

  const std::vector<Tokens>* constraints_;
  std::vector<char> closed_;  // whether each constraint is met
  std::size_t open_;          // number of those that are not
  std::size_t met_ = 0;       // tokens of those that are
  Tokens rest_;               // last tokens, which begin an open constraint
};

// Different tokens of phrases, ascending.
Tokens different_tokens(const std::vector<Tokens>& phrases);

// Collects the progress of the beams of a batch.
class ProgressBuilder {
 public:
  ProgressBuilder(std::int64_t rows, std::int64_t beams) : rows_(rows), beams_(beams) {}

  // Adds a sentence. tokens: the different tokens of its constraints. readings: of its first beams;
  // those of other beams do not matter.
  void add(std::int64_t row, Tokens tokens, std::vector<Reading> readings);

  ConstraintProgress build() const;

 private:
  struct Row {
    Tokens tokens;
    std::vector<Reading> readings;
  };

  std::int64_t rows_, beams_;
  std::map<std::int64_t, Row> added_;
};

}  // namespace translate_trt::runtime
