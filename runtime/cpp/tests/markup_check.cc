// Texts with markup on request, for tests in Python: reads a JSON request per line of standard
// input and writes a JSON answer per line of standard output.
//
//   {"tokens": text, "markup": "html", "xml" or "text"}
//     -> {"tokens": [[kind, raw, name, text, {attributes}], ...]}
//   {"texts": [...], "names": [...], "markup": ..., "whole": true, "rounds": [[translation, ...]]}
//     -> {"lines": [[line, index of its text, whether it is tagless], ...]} after rounds that leave
//        lines to translate
//     -> {"texts": [[sentences, [[text, score], ...]], ...]} after the last round
//     A translation is a list of {"text": ..., "score": ..., "segments": [segment, ...]}, and a
//     segment {"source": [[begin, end], ...], "target": ..., "weights": [[weight, ...], ...]}.
//   {"encode": text, "markup": ...} -> {"text": ...}
//
// The answer to texts that are refused is {"error": message}.

#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/utf8.h"
#include "core/markup.h"
#include "text/markup_tokens.h"

namespace {

using nlohmann::json;
using namespace translate_trt::runtime;

const char* kind_name(TokenKind kind) {
  switch (kind) {
    case TokenKind::kText:
      return "text";
    case TokenKind::kStart:
      return "start";
    case TokenKind::kEnd:
      return "end";
    case TokenKind::kEmpty:
      return "empty";
    case TokenKind::kReference:
      return "reference";
    case TokenKind::kOther:
      break;
  }
  return "other";
}

Markup markup_of(const json& request) {
  const std::string name = request.at("markup");
  return name == "html" ? Markup::kHtml : name == "xml" ? Markup::kXml : Markup::kText;
}

json tokens_of(const json& request) {
  const std::u32string text = decode_utf8(request.at("tokens").get<std::string>());
  json tokens = json::array();
  for (const MarkupToken& token : read_tokens(text, markup_of(request), "the text")) {
    json attributes = json::object();
    for (const auto& [name, value] : token.attributes) {
      attributes[encode_utf8(name)] = encode_utf8(token.attribute(name));
    }
    tokens.push_back({kind_name(token.kind), encode_utf8(token.raw), encode_utf8(token.name),
                      encode_utf8(token.text), attributes});
  }
  return {{"tokens", tokens}};
}

Translation translation_of(const json& given) {
  Translation found;
  for (const json& hypothesis : given) {
    TextHypothesis& one = found.hypotheses.emplace_back();
    one.text = hypothesis.at("text");
    one.score = hypothesis.at("score");
    one.aligned.emplace().target = decode_utf8(one.text);
    for (const json& segment : hypothesis.at("segments")) {
      AlignedSegment& aligned = one.aligned->segments.emplace_back();
      aligned.source = segment.at("source").get<std::vector<Span>>();
      aligned.target = segment.at("target").get<std::vector<Span>>();
      for (const json& row : segment.at("weights")) {
        for (const float weight : row) aligned.weights.push_back(weight);
      }
    }
    one.pieces.resize(one.aligned->segments.size());
  }
  return found;
}

json translations_of(const json& request) {
  std::vector<std::u32string> texts;
  for (const std::string text : request.at("texts")) texts.push_back(decode_utf8(text));
  MarkedTexts marked(texts, request.at("names"), markup_of(request), request.at("whole"));
  for (const json& round : request.at("rounds")) {
    std::vector<Translation> translations;
    for (const json& translation : round) translations.push_back(translation_of(translation));
    marked.receive(translations);
  }
  json lines = json::array();
  for (std::size_t i = 0; i < marked.lines().size(); ++i) {
    lines.push_back({marked.lines()[i], marked.owners()[i], marked.tagless().at(i)});
  }
  if (!lines.empty()) return {{"lines", lines}};
  json found = json::array();
  for (const Translation& translation : marked.translations()) {
    json hypotheses = json::array();
    for (const TextHypothesis& one : translation.hypotheses) {
      hypotheses.push_back({one.text, one.score});
    }
    found.push_back({translation.sentences, hypotheses});
  }
  return {{"texts", found}};
}

json answer(const json& request) {
  if (request.contains("texts")) return translations_of(request);
  if (request.contains("tokens")) return tokens_of(request);
  const std::u32string text = decode_utf8(request.at("encode").get<std::string>());
  return {{"text", encode_utf8(encode_text(text, markup_of(request)))}};
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    json found;
    try {
      found = answer(json::parse(line));
    } catch (const Error& error) {
      found = {{"error", error.what()}};
    }
    std::cout << found.dump() << std::endl;
  }
}
