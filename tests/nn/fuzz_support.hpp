#pragma once

// Counts and limits what C++ code allocates, and holds files in memory. Include it once in a
// program: it replaces the global operators new and delete.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <new>
#include <random>
#include <string>
#include <tessera/core/error.hpp>
#include <vector>

#include "support/op_test.hpp"

// Every allocation of C++ code in this program is counted; above the limit they fail.
namespace {

std::atomic<std::int64_t> live{0};
std::atomic<std::int64_t> most{std::int64_t{1} << 60};

void* allocate(std::size_t bytes) {
  void* const block = std::malloc(bytes + 16);
  const auto size = static_cast<std::int64_t>(bytes);
  if (block == nullptr || live.fetch_add(size) + size > most) {
    if (block != nullptr) live.fetch_sub(size);
    std::free(block);
    throw std::bad_alloc();
  }
  std::memcpy(block, &bytes, sizeof(bytes));
  return static_cast<char*>(block) + 16;
}

void release(void* memory) {
  if (memory == nullptr) return;
  void* const block = static_cast<char*>(memory) - 16;
  std::size_t bytes = 0;
  std::memcpy(&bytes, block, sizeof(bytes));
  live.fetch_sub(static_cast<std::int64_t>(bytes));
  std::free(block);
}

/// While alive, the program may hold `bytes` more than it does now.
class AllocationLimit {
 public:
  explicit AllocationLimit(std::int64_t bytes) { most = live + bytes; }
  ~AllocationLimit() { most = std::int64_t{1} << 60; }
};

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return allocate(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t bytes, const std::nothrow_t& tag) noexcept {
  return operator new(bytes, tag);
}
void operator delete(void* p) noexcept { release(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { release(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { release(p); }
void operator delete[](void* p) noexcept { release(p); }
void operator delete(void* p, std::size_t) noexcept { release(p); }
void operator delete[](void* p, std::size_t) noexcept { release(p); }

namespace tessera::test {

/// TESSERA_TEST_SEED, or `usual`; says which.
inline std::uint64_t fuzz_seed(const char* parser, std::uint64_t usual) {
  const char* const text = std::getenv("TESSERA_TEST_SEED");
  const std::uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 0) : usual;
  std::cout << parser << " fuzz seed " << seed << std::endl;
  return seed;
}

/// Damaged files per parser; a million in a deep run.
inline int fuzz_files() { return draw_count(20) >= 500 ? 1'000'000 : 10'000; }

/// A file in memory: a million of them would wear out a disk.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("fuzz", MFD_CLOEXEC)) { REQUIRE(fd_ >= 0); }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  std::string path() const { return str("/proc/self/fd/", fd_); }
  void fill(const std::string& bytes) const {
    REQUIRE(ftruncate(fd_, static_cast<off_t>(bytes.size())) == 0);
    REQUIRE(pwrite(fd_, bytes.data(), bytes.size(), 0) == std::ssize(bytes));
  }

 private:
  int fd_;
};

/// Damage of any kind, in any text or bytes.
class Damage {
 public:
  explicit Damage(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  template <class T>
  const T& any(const std::vector<T>& from) {
    return from[below(from.size())];
  }
  /// A number that somebody may not have thought of.
  std::string number() {
    static const std::vector<std::string> odd = {"0",
                                                 "1",
                                                 "-1",
                                                 "-0",
                                                 "4294967296",
                                                 "2147483648",
                                                 "9223372036854775807",
                                                 "01",
                                                 "1e3",
                                                 "1.0",
                                                 "1e400",
                                                 "true",
                                                 "null",
                                                 "9223372036854775808",
                                                 "{}",
                                                 "\"4\"",
                                                 "[4]",
                                                 "",
                                                 "4611686018427387904",
                                                 "18446744073709551615",
                                                 "18446744073709551616"};
    return below(3) == 0 ? std::to_string(below(100)) : any(odd);
  }
  /// Puts an odd number in the place of one of the numbers of a text.
  void numbers(std::string& text) {
    std::vector<std::size_t> starts;
    for (std::size_t i = 0; i < text.size(); ++i)
      if (digit(text[i]) && (i == 0 || !digit(text[i - 1]))) starts.push_back(i);
    if (starts.empty()) return;
    const std::size_t at = any(starts);
    std::size_t end = at;
    while (end < text.size() && digit(text[end])) ++end;
    text.replace(at, end - at, number());
  }
  /// Puts one word in the place of another, or somewhere.
  void words(std::string& text, const std::vector<std::string>& dictionary) {
    const std::string& word = any(dictionary);
    const std::size_t at = text.empty() ? 0 : below(text.size());
    const std::size_t found = text.find(any(dictionary), at);
    if (found != std::string::npos && below(2) == 0) {
      text.replace(found, 1 + below(12), word);
    } else {
      text.insert(at, word);
    }
  }
  void bytes(std::string& text) {
    if (text.empty()) return;
    const std::size_t at =
        below(below(2) == 0 ? text.size() : std::min<std::size_t>(text.size(), 64));
    switch (below(6)) {
      case 0:
        text[at] = static_cast<char>(random_());
        break;
      case 1:
        text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 2:
        text.resize(at);
        break;
      case 3:
        text.erase(at, 1 + below(12));
        break;
      case 4: {  // a field of two to eight bytes
        static const std::uint64_t values[] = {~0ull, 1ull << 63, 1ull << 31, 0xffffffffull, 0, 1};
        const std::uint64_t value = values[below(6)];
        const std::size_t size = std::min<std::size_t>(2ull << below(3), text.size() - at);
        std::memcpy(text.data() + at, &value, size);
        break;
      }
      default:
        text.insert(at, text.substr(below(text.size()), below(60)));
    }
  }

 private:
  static bool digit(char c) { return c >= '0' && c <= '9'; }
  std::mt19937_64 random_;
};

}  // namespace tessera::test
