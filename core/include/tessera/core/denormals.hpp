#pragma once

#include <cstdint>

namespace tessera {

/// While one lives, the thread takes and gives numbers below the normal range as zeros (`flush`),
/// or as IEEE 754 has it. Processors take some 150 cycles per denormal factor, and probabilities
/// and gradients are full of them: products of kernels flush. What runs between their tiles
/// (poll_progress()) does not: a sum must not depend on where it was waited for.
class Denormals {
 public:
  explicit Denormals(bool flush) : before_(read()) {
    write(flush ? before_ | kFlush : before_ & ~kFlush);
  }
  ~Denormals() { write(before_); }
  Denormals(const Denormals&) = delete;
  Denormals& operator=(const Denormals&) = delete;

 private:
#if defined(__x86_64__)
  using Mode = std::uint32_t;
  static constexpr Mode kFlush = 0x8040;  // results, factors
  static Mode read() { return __builtin_ia32_stmxcsr(); }
  static void write(Mode mode) { __builtin_ia32_ldmxcsr(mode); }
#elif defined(__aarch64__)
  using Mode = std::uint64_t;
  static constexpr Mode kFlush = Mode{1} << 24;
  static Mode read() {
    Mode mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(Mode mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
  using Mode = std::uint32_t;
  static constexpr Mode kFlush = 0;
  static Mode read() { return 0; }
  static void write(Mode) {}
#endif

  Mode before_;
};

}  // namespace tessera
