// What the functions of the C interface share: handles, arguments, and errors as statuses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "core/results.h"
#include "text/glossary.h"
#include "translate_trt/translate_trt.h"

struct tt_result {
  std::vector<translate_trt::runtime::Translation> translations;
  // Tokens as int32_t, by line, hypothesis and piece.
  std::vector<std::vector<std::vector<std::vector<std::int32_t>>>> tokens;
  std::uint64_t round = 0;  // of texts with markup whose lines were translated (tt_markup)
};

struct tt_glossary {
  translate_trt::runtime::Glossary glossary;
};

namespace translate_trt::runtime {

// Sets the calling thread's last message; returns the status.
tt_status failed(tt_status status, const char* message) noexcept;

// Calls a function and converts any exception to a status.
template <class Function>
tt_status guarded(const Function& function) noexcept {
  try {
    function();
    return TT_OK;
  } catch (const Error& error) {
    return failed(error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return failed(TT_MEMORY_ERROR, "memory ran out. Lower batch_tokens or workers.");
  } catch (const std::exception& error) {
    return failed(TT_INTERNAL_ERROR, error.what());
  } catch (...) {
    return failed(TT_INTERNAL_ERROR, "an exception of an unknown type was thrown");
  }
}

// Throws an input error unless an argument is given.
void require(bool given, const char* name);

// The texts of an array. name: of a text in errors. Throws an input error if one has no data.
std::vector<std::string_view> texts(const tt_text* given, std::size_t count, const char* name);

// Returns a new handle.
tt_result* as_result(std::vector<Translation> translations);

}  // namespace translate_trt::runtime
