// Comparison of the runtime's own declarations of a library's functions with those of its header.
#pragma once

#include <string_view>

namespace translate_trt::runtime {

// Whether two functions take as many arguments, of the same sizes, and return as much.
template <class One, class Other>
struct SameCall;

template <class One, class Other, class... Ones, class... Others>
struct SameCall<One (*)(Ones...), Other (*)(Others...)> {
  static constexpr bool same() {
    if constexpr (sizeof...(Ones) != sizeof...(Others)) {
      return false;
    } else {
      return sizeof(One) == sizeof(Other) && ((sizeof(Ones) == sizeof(Others)) && ...);
    }
  }
};

// text: the name that is loaded, which the header may not rename, as to a later version.
#define TT_TEXT(name) #name
#define TT_SAME_CALL(table, member, function, text)                              \
  static_assert(SameCall<decltype(table::member), decltype(&function)>::same()); \
  static_assert(std::string_view(TT_TEXT(function)) == text);

}  // namespace translate_trt::runtime
