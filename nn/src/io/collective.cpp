#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <tessera/core/error.hpp>
#include <tessera/nn/io/collective.hpp>

namespace tessera::io {
namespace {

constexpr std::size_t kMessageWords = 64;

void add(const Collective& collective, std::span<std::int64_t> values) {
  if (collective.size > 1) collective.sum(values);
}

}  // namespace

std::int64_t Collective::total(std::int64_t value) const {
  add(*this, {&value, 1});
  return value;
}

std::int64_t Collective::broadcast(std::int64_t value) const {
  return total(rank == 0 ? value : 0);
}

void Collective::combine(std::span<double> values) const {
  if (size == 1) return;
  std::vector<std::int64_t> bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(),
                 [](double v) { return std::bit_cast<std::int64_t>(v); });
  add(*this, bits);
  std::transform(bits.begin(), bits.end(), values.begin(),
                 [](std::int64_t b) { return std::bit_cast<double>(b); });
}

void Collective::together(const std::function<void()>& f) const {
  std::exception_ptr error;
  std::string message;
  try {
    f();
  } catch (const std::exception& e) {
    error = std::current_exception();
    message = e.what();
  }
  if (size > 1) {
    std::vector<std::int64_t> failed(static_cast<std::size_t>(size), 0);
    failed[static_cast<std::size_t>(rank)] = error ? 1 : 0;
    add(*this, failed);
    const auto first = std::find(failed.begin(), failed.end(), 1);
    if (first == failed.end()) return;
    const int origin = static_cast<int>(first - failed.begin());
    std::int64_t words[kMessageWords] = {};
    if (rank == origin)
      std::memcpy(words, message.data(), std::min(message.size(), sizeof(words) - 1));
    add(*this, words);
    if (!error) {
      char text[sizeof(words)];
      std::memcpy(text, words, sizeof(words));
      text[sizeof(words) - 1] = '\0';
      throw IoError(str(text, " (reported by rank ", origin, ")"));
    }
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace tessera::io
