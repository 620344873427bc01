// Verification of a bundle's files against the manifest.

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "base/errors.h"
#include "bundle/fields.h"
#include "bundle/manifest.h"
#include "bundle/sha256.h"

namespace translate_trt::runtime {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kHashBlock = std::size_t{1} << 20;  // bytes

std::string hash_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> block(kHashBlock);
  Sha256 hash;
  errno = 0;
  while (file) {
    file.read(block.data(), static_cast<std::streamsize>(block.size()));
    hash.update(reinterpret_cast<const unsigned char*>(block.data()),
                static_cast<std::size_t>(file.gcount()));
  }
  if (!file.eof()) {
    throw bundle_error("cannot read " + path.u8string() + ": " + std::strerror(errno) + ". " +
                       kRemedy);
  }
  return hash.digest();
}

void verify_file(const fs::path& path, const FileEntry& entry, bool hashes) {
  const std::string name = path.u8string();
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    throw bundle_error(name + ", which the manifest names, is missing. " + kRemedy);
  }
  const auto size = fs::file_size(path, error);
  if (error || size != static_cast<std::uintmax_t>(entry.bytes)) {
    throw bundle_error(name + " has " + std::to_string(size) + " bytes, the manifest says " +
                       std::to_string(entry.bytes) + ": the file is incomplete or was changed. " +
                       kRemedy);
  }
  if (!hashes) return;
  const std::string found = hash_of(path);
  if (found != entry.sha256) {
    throw bundle_error(name + " has SHA-256 " + found + ", the manifest says " + entry.sha256 +
                       ": the file was changed or damaged. " + kRemedy);
  }
}

}  // namespace

fs::path FileEntry::locate(const fs::path& bundle) const { return bundle / fs::u8path(path); }

void verify_files(const fs::path& bundle, const Manifest& manifest, const TargetEntry& target,
                  bool hashes) {
  std::vector<FileEntry> entries = {manifest.source_tokenizer, manifest.target_tokenizer};
  for (const auto& [role, entry] : target.files) entries.push_back(entry);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto same = [&](const FileEntry& other) {
      return other.path == entries[i].path && other.sha256 == entries[i].sha256 &&
             other.bytes == entries[i].bytes;
    };
    const auto here = entries.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::any_of(entries.begin(), here, same)) continue;  // a shared file has two entries
    verify_file(entries[i].locate(bundle), entries[i], hashes);
  }
}

}  // namespace translate_trt::runtime
