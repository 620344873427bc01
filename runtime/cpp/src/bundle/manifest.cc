#include "bundle/manifest.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "../../format_version.h"
#include "base/errors.h"
#include "base/utf8.h"
#include "bundle/contract_fields.h"
#include "bundle/fields.h"

namespace translate_trt::runtime {

namespace fs = std::filesystem;

namespace {

// Suffix of the name of a target that restricts the output to a shortlist.
constexpr const char* kShortlist = "-shortlist";

// Rejects invisible characters that no path of a bundle needs; not a full Unicode classification.
bool is_printable(char32_t c) {
  return !is_control(c) && (c == U' ' || !is_space(c)) && c != 0xAD && c != 0xFEFF &&
         !(c >= 0x200B && c <= 0x200F) && !(c >= 0x202A && c <= 0x202E) &&
         !(c >= 0x2060 && c <= 0x206F) && !(c >= 0xE000 && c <= 0xF8FF) && c < 0xE0000;
}

void check_path(const std::string& path) {
  const std::u32string characters = decode_utf8(path);
  bool allowed = std::all_of(characters.begin(), characters.end(), is_printable) &&
                 path.find('\\') == std::string::npos &&
                 !(characters.size() > 1 && characters[1] == U':');  // a Windows drive
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    allowed = allowed && !part.empty() && part != "." && part != "..";
    begin = end + 1;
  }
  if (allowed) return;
  throw bundle_error("the file path " + shown(Json(path)) +
                     " is not allowed in a bundle: it must " +
                     "be relative, with forward slashes and without '..'.");
}

bool is_hash(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

FileEntry read_entry(const Fields& fields) {
  const std::string& sha256 = fields.text("sha256");
  if (!is_hash(sha256)) {
    fields.fail("sha256", "64 lower-case hexadecimal digits", fields.values()["sha256"]);
  }
  FileEntry entry = {fields.text("path"), sha256, fields.integer("bytes", 0)};
  check_path(entry.path);
  return entry;
}

ModelDescription read_model(const Fields& fields) {
  // Fields that only Python displays are required, too.
  for (const char* name : {"encoder_layers", "decoder_layers", "heads", "key_size", "value_size",
                           "model_size", "feed_forward_size", "parameters"}) {
    fields.integer(name, 1);
  }
  fields.integer("pad_token", -1);
  const std::int64_t pieces = fields.integer("vocabulary_size", 1);
  // 0: same as the target's.
  const std::int64_t of_source = fields.integer("source_vocabulary_size", 0);
  return {pieces,
          fields.integer("start_token", 0),
          fields.integer("end_token", 0),
          fields.integer("unknown_token", -1),
          of_source != 0 ? of_source : pieces,
          fields.boolean("source_end")};
}

// Checks that the prompt's tokens are in the vocabularies and leave space for a text.
Prompt read_prompt(const Fields& fields, const Fields& limits, const ModelDescription& model) {
  const Prompt prompt = Prompt::read(fields.object("prompt"));
  const auto [source, target] = prompt.largest();
  if (source >= model.input_vocabulary_size || target >= model.vocabulary_size) {
    fields.fail("prompt", "tokens of the vocabulary", Json(std::max(source, target)));
  }
  const std::int64_t least = prompt.source_length() + 2;  // plus one token and the end symbol
  if (limits.integer("max_source_length", 1) < least) {
    limits.fail("max_source_length", "at least " + std::to_string(least),
                limits.values()["max_source_length"]);
  }
  return prompt;
}

// ---- default search options: one overload for each C++ type of a field ----

void read(const Fields& fields, const std::string& name, const Json& value, int& option) {
  if (!value.is_number_integer()) fields.fail(name, "of type int", value);
  const auto number = value.get<std::int64_t>();
  const bool fits = number >= INT32_MIN && number <= INT32_MAX &&
                    !(value.is_number_unsigned() && value.get<std::uint64_t>() > INT32_MAX);
  if (!fits) fields.fail(name, "a number of 32 bits", value);
  option = static_cast<int>(number);
}

void read(const Fields& fields, const std::string& name, const Json& value,
          std::optional<int>& option) {
  if (!value.is_null()) read(fields, name, value, option.emplace());
}

void read(const Fields& fields, const std::string& name, const Json& value, double& option) {
  if (!value.is_number()) fields.fail(name, "of type int | float", value);
  option = value.get<double>();
}

void read(const Fields& fields, const std::string& name, const Json& value, bool& option) {
  if (!value.is_boolean()) fields.fail(name, "of type bool", value);
  option = value.get<bool>();
}

void read(const Fields& fields, const std::string& name, const Json& value,
          std::optional<std::string>& option) {
  if (!value.is_null() && !value.is_string()) fields.fail(name, "of type str", value);
  if (value.is_string()) option = value.get<std::string>();
}

void read(const Fields& fields, const std::string& name, const Json& value,
          LengthPenaltyForm& option) {
  if (!value.is_string()) fields.fail(name, "of type str", value);
  option = value == "gnmt"     ? LengthPenaltyForm::kGnmt
           : value == "length" ? LengthPenaltyForm::kLength
                               : LengthPenaltyForm{-1};  // rejected by `check`
}

SearchOptions read_search(const Fields& fields) {
  SearchOptions options;
  for (const auto& item : fields.values().items()) {
    std::vector<std::string> names;
    bool found = false;
    for_each_option([&](const auto& field) {
      names.push_back(field.name);
      if (item.key() != field.name) return;
      read(fields, field.name, item.value(), options.*field.value);
      found = true;
    });
    if (!found) fields.fail(item.key(), "one of " + join(names, ", "), Json(item.key()));
  }
  try {
    options.check();
  } catch (const Error& error) {
    fields.fail("*", std::string("valid defaults (") + error.what() + ")", fields.values());
  }
  return options;
}

// ---- targets ----

TargetEntry read_target(const std::string& name, const Fields& fields) {
  const Fields files = fields.object("files");
  TargetEntry target;
  target.name = name;
  target.backend = fields.text("backend");
  if (target.backend.rfind("onnx", 0) == 0) files.object("encoder"), files.object("step");
  target.precision = fields.text("precision");
  for (const auto& [role, entry] : files.objects()) {
    target.files.emplace_back(role, read_entry(entry));
  }
  target.contract = read_contract(fields.object("contract"));
  fields.check_optional_object("engine");
  target.engine = fields.get("engine").dump();
  fields.object("builder").check_texts();
  fields.check_optional_object("parity");
  fields.check_optional_object("calibration");
  target.calibration = fields.get("calibration").dump();
  return target;
}

// ---- the file itself ----

std::string why_no_manifest(const fs::path& bundle, int error) {
  std::error_code ignored;
  const std::string name = bundle.u8string();
  if (!fs::exists(bundle, ignored)) return "there is no bundle at " + name + "; check the path.";
  if (!fs::is_directory(bundle, ignored)) {
    return name + " is not a directory; a bundle is the directory with " + kManifestName +
           " in it.";
  }
  const fs::path manifest = bundle / kManifestName;
  if (fs::is_regular_file(bundle / "config.json", ignored) && !fs::exists(manifest, ignored)) {
    return name + " is a checkpoint and not a bundle (it has config.json but no " + kManifestName +
           "); make a bundle of it with translate-trt export.";
  }
  if (error == ENOENT) {
    return name + " is not a bundle: it has no " + kManifestName + ". " + kRemedy;
  }
  return "cannot read " + manifest.u8string() + ": " + std::strerror(error) + ".";
}

std::string read_file(const fs::path& bundle) {
  errno = 0;
  std::ifstream file(bundle / kManifestName, std::ios::binary);
  if (!file) throw bundle_error(why_no_manifest(bundle, errno));
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (file.bad() || !fs::is_regular_file(bundle / kManifestName)) {
    throw bundle_error(why_no_manifest(bundle, errno != 0 ? errno : EISDIR));
  }
  return text;
}

std::vector<std::string> languages(const Languages& known, const std::optional<std::string>& own) {
  std::vector<std::string> names;
  for (const auto& [name, token] : known) names.push_back(name);
  if (known.empty() && own) names.push_back(*own);
  return names;
}

}  // namespace

const FileEntry& TargetEntry::file(const std::string& role) const {
  for (const auto& [name, entry] : files) {
    if (name == role) return entry;
  }
  throw bundle_error("the target " + in_quotes(name) + " has no file " + in_quotes(role) + ". " +
                     kRemedy);
}

const TargetEntry& Manifest::target(const std::optional<std::string>& name, bool shortlist) const {
  std::vector<std::string> names;
  for (const TargetEntry& target : targets) names.push_back(target.name);
  std::string wanted = name.value_or(names.front());
  const std::string ending = kShortlist;
  const bool has_ending = wanted.size() >= ending.size() &&
                          wanted.compare(wanted.size() - ending.size(), ending.size(), ending) == 0;
  const bool added = shortlist && !has_ending;
  if (added) wanted += ending;
  const auto found = std::find(names.begin(), names.end(), wanted);
  if (found != names.end()) return targets[static_cast<std::size_t>(found - names.begin())];
  const std::string there = "; it has: " + join(names, ", ") + ". ";
  if (added) {
    throw bundle_error("the bundle has no target " + in_quotes(wanted) +
                       ", so there is no shortlist to use" + there + "Export it with --target " +
                       wanted + " --shortlist TABLE.");
  }
  throw bundle_error("the bundle has no target " + in_quotes(wanted) + there +
                     "Choose one of these or add the other with translate-trt export.");
}

std::vector<std::string> Manifest::source_languages() const {
  return languages(prompt.source_languages, source_language);
}

std::vector<std::string> Manifest::target_languages() const {
  return languages(prompt.target_languages, target_language);
}

Manifest read_manifest(const fs::path& bundle) {
  const fs::path path = bundle / kManifestName;
  const Json value = parse_json(read_file(bundle), path);
  const Fields fields(value, path);
  const std::int64_t version = fields.integer("format_version", 1);
  if (version != kFormatVersion) {
    throw bundle_error(path.u8string() + " has format version " + std::to_string(version) +
                       ", this libtranslate_trt reads " + std::to_string(kFormatVersion) +
                       ". Export the model again, or upgrade the library.");
  }
  fields.text("created_by");
  fields.optional_text("weights_sha256");
  const Fields tokenizer = fields.object("tokenizer"), targets = fields.object("targets");
  Manifest manifest;
  manifest.source_language = fields.optional_text("source_language");
  manifest.target_language = fields.optional_text("target_language");
  manifest.model = read_model(fields.object("model"));
  const Fields limits = fields.object("limits");
  manifest.limits = {limits.integer("max_source_length", 1),
                     limits.integer("max_target_length", 1)};
  manifest.prompt = read_prompt(fields, limits, manifest.model);
  if (fields.values().contains("term_annotation")) {
    manifest.term_annotation = TermAnnotation::read(fields.object("term_annotation"));
  }
  manifest.search = read_search(fields.object("search"));
  manifest.source_tokenizer = read_entry(tokenizer.object("source"));
  manifest.target_tokenizer = read_entry(tokenizer.object("target"));
  for (const auto& [name, entry] : targets.objects(true)) {
    manifest.targets.push_back(read_target(name, entry));
  }
  return manifest;
}

}  // namespace translate_trt::runtime
