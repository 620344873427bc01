// What the functions of the C interface share: arguments, and errors as statuses.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "base/errors.h"
#include "text/glossary.h"
#include "translate_trt/translate_trt.h"

struct tt_glossary {
  std::shared_ptr<const translate_trt::runtime::Glossary> glossary;
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

// A null-terminated text that belongs to a handle.
tt_text as_text(const std::string& text);

// A term as C structure, whose texts belong to `term` and its glossary. Its entry may be null.
tt_term as_term(const Term& term);

}  // namespace translate_trt::runtime
