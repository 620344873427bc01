// The manifest of a bundle: read, check, and where the files lie (runtime/bundle/manifest.py).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/options.h"
#include "bundle/contract.h"
#include "bundle/prompt.h"

namespace translate_trt::runtime {

inline constexpr const char* kManifestName = "manifest.json";

// Of what `ModelDescription` has in Python, the part that a search needs.
struct ModelDescription {
  std::int64_t vocabulary_size, start_token, end_token;
  std::int64_t source_pieces;  // source token ids are below this
  bool source_end;             // the decoder sees the source's end symbol
};

// Largest lengths the model was made for, in tokens, the end symbol included.
struct Limits {
  std::int64_t max_source_length, max_target_length;
};

// One file of a bundle.
struct FileEntry {
  std::string path, sha256;
  std::int64_t bytes;

  // Where the file is, or ought to be. The path cannot leave the bundle; a link that lies there may
  // lead anywhere, because the content is held to its hash.
  std::filesystem::path locate(const std::filesystem::path& bundle) const;
};

struct TargetEntry {
  std::string name, backend;
  std::vector<std::pair<std::string, FileEntry>> files;  // by role
  Contract contract;
  std::string
      engine;  // JSON: by role, what engines were built by and for (engine_record.h), or null

  const FileEntry& file(const std::string& role) const;
};

struct Manifest {
  std::optional<std::string> source_language, target_language;  // that the model was made for
  ModelDescription model;
  Limits limits;
  Prompt prompt;
  SearchOptions search;
  FileEntry source_tokenizer, target_tokenizer;
  std::vector<TargetEntry> targets;  // at least one; the first is the default

  // That target; without a name, the first; its like with a shortlist, if that is wanted.
  // A bundle error if there is none of that name.
  const TargetEntry& target(std::optional<std::string> name, bool shortlist) const;

  // What options may call the source's language, in order; of a model that is told none, the one it
  // was made for, if that is known.
  std::vector<std::string> source_languages() const;
  std::vector<std::string> target_languages() const;  // the same of the target's
};

// A bundle error if it is missing, damaged, or of a format this library does not read.
Manifest read_manifest(const std::filesystem::path& bundle);

// Checks that the tokenizer's and that target's files are there and are what they were: existence
// and size, and SHA-256, too, if `hashes`. A bundle error if not.
void verify_files(const std::filesystem::path& bundle, const Manifest& manifest,
                  const TargetEntry& target, bool hashes);

}  // namespace translate_trt::runtime
