// SHA-256 (FIPS 180-4), without a dependency on a crypto library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace translate_trt::runtime {

class Sha256 {
 public:
  // instructions: whether to use the CPU's SHA extensions where available; false for tests.
  explicit Sha256(bool instructions = true);

  void update(const unsigned char* data, std::size_t size);

  // Digest of all data in lower-case hexadecimal. The object cannot be updated afterwards.
  std::string digest();

 private:
  static constexpr std::size_t kBlock = 64;  // bytes

  bool instructions_;
  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, kBlock> rest_ = {};  // a partial block
  std::size_t filled_ = 0;
  std::uint64_t size_ = 0;  // bytes so far
};

}  // namespace translate_trt::runtime
