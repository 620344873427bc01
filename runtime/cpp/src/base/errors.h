// Errors that users can cause (runtime/errors.py).
#pragma once

#include <stdexcept>
#include <string>

#include "translate_trt/translate_trt.h"

namespace translate_trt::runtime {

// An error. Its message says what was wrong, where (file, line or option), and what to do about it.
class Error : public std::runtime_error {
 public:
  Error(tt_status status, const std::string& message)
      : std::runtime_error(message), status_(status) {}

  tt_status status() const { return status_; }

 private:
  tt_status status_;
};

inline Error input_error(const std::string& message) { return {TT_INPUT_ERROR, message}; }
inline Error option_error(const std::string& message) { return {TT_OPTION_ERROR, message}; }
inline Error bundle_error(const std::string& message) { return {TT_BUNDLE_ERROR, message}; }
inline Error backend_error(const std::string& message) { return {TT_BACKEND_ERROR, message}; }

}  // namespace translate_trt::runtime
