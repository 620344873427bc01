// The manifest of a bundle: reading, checking, and paths of files (runtime/bundle/manifest.py).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/options.h"
#include "bundle/contract.h"
#include "bundle/prompt.h"
#include "bundle/term_annotation.h"

namespace translate_trt::runtime {

inline constexpr const char* kManifestName = "manifest.json";

// The part of Python's `ModelDescription` that a search needs.
struct ModelDescription {
  std::int64_t vocabulary_size, start_token, end_token;
  std::int64_t unknown_token;          // -1 if the vocabulary has none
  std::int64_t input_vocabulary_size;  // size of the source vocabulary
  bool source_end;                     // whether the decoder attends to the source's end symbol
};

// Maximum lengths of the compiled graphs, in tokens, the end symbol included.
struct Limits {
  std::int64_t max_source_length, max_target_length;
};

// One file of a bundle.
struct FileEntry {
  std::string path, sha256;
  std::int64_t bytes;

  // Path of the file, which may not exist. The path stays within the bundle; a symbolic link there
  // may point anywhere, because the content is verified by its hash.
  std::filesystem::path locate(const std::filesystem::path& bundle) const;
};

struct TargetEntry {
  std::string name, backend;
  std::string precision;                                 // such as "fp32" or "int8"
  std::vector<std::pair<std::string, FileEntry>> files;  // by role
  Contract contract;
  std::string engine;       // JSON: engine records by role (engine_record.h), or null
  std::string calibration;  // JSON: of the confidence of words (core/confidence.h), or null

  const FileEntry& file(const std::string& role) const;
};

struct Manifest {
  std::optional<std::string> source_language, target_language;  // of a bilingual model, if known
  ModelDescription model;
  Limits limits;
  Prompt prompt;
  // How the model reads target phrases of a glossary in its source, if it does.
  std::optional<TermAnnotation> term_annotation;
  SearchOptions search;
  FileEntry source_tokenizer, target_tokenizer;
  std::vector<TargetEntry> targets;  // at least one; the first is the default

  // The named target (default: the first), or its shortlist variant. Throws a bundle error if the
  // bundle does not have it.
  const TargetEntry& target(const std::optional<std::string>& name, bool shortlist) const;

  // Languages that the options accept, in alphabetical order: those of a multilingual model, or the
  // single language of any other model, if known.
  std::vector<std::string> source_languages() const;
  std::vector<std::string> target_languages() const;
};

// Reads and checks a manifest. Throws a bundle error if it is missing, damaged, or of an
// unsupported format.
Manifest read_manifest(const std::filesystem::path& bundle);

// Verifies that the files of the tokenizers and the target exist with the size (and, if `hashes`,
// the SHA-256) of the manifest. Throws a bundle error otherwise.
void verify_files(const std::filesystem::path& bundle, const Manifest& manifest,
                  const TargetEntry& target, bool hashes);

}  // namespace translate_trt::runtime
