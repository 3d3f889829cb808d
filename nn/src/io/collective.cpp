#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <tessera/core/error.hpp>
#include <tessera/nn/io/collective.hpp>
#include <tessera/nn/io/data_error.hpp>

namespace tessera::io {
namespace {

constexpr std::size_t kMessageBytes = 1024;

/// The kinds of errors that keep their type on their way to other ranks, special ones first.
template <class... Kinds>
struct KindList {
  /// 1 + the place of the error's kind; the last one stands for all others.
  static std::int64_t of(const std::exception& error) {
    std::int64_t kind = 0;
    bool found = false;
    ((found = found || (++kind, dynamic_cast<const Kinds*>(&error) != nullptr)), ...);
    return kind;
  }
  [[noreturn]] static void raise(std::int64_t kind, const std::string& message) {
    std::int64_t k = 0;
    ((++k == kind ? throw Kinds(message) : void()), ...);
    throw Error(message);
  }
};
using ErrorKinds = KindList<DataError,
                            IoError,
                            UsageError,
                            ShapeError,
                            LayoutError,
                            DTypeError,
                            DeviceError,
                            OutOfMemory,
                            NotSupported,
                            Error>;

void add(const Collective& collective, std::span<std::int64_t> values) {
  if (collective.size > 1) collective.sum(values);
}

}  // namespace

std::int64_t Collective::total(std::int64_t value) const {
  add(*this, {&value, 1});
  return value;
}

std::vector<double> Collective::total(const std::vector<double>& values) const {
  std::vector<double> all(values.size() * static_cast<std::size_t>(size), 0.0);
  std::copy(values.begin(), values.end(),
            all.begin() + static_cast<std::ptrdiff_t>(values.size()) * rank);
  combine(all);
  std::vector<double> sums(values.size(), 0.0);
  for (std::size_t i = 0; i < all.size(); ++i) sums[i % values.size()] += all[i];
  return sums;
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
  if (size == 1) return f();
  std::int64_t kind = 0;
  std::string message;
  try {
    f();
  } catch (const std::exception& e) {
    kind = ErrorKinds::of(e);
    message = e.what();
  }
  std::vector<std::int64_t> failed(static_cast<std::size_t>(size), 0);
  failed[static_cast<std::size_t>(rank)] = kind;
  add(*this, failed);
  const auto first =
      std::find_if(failed.begin(), failed.end(), [](std::int64_t k) { return k != 0; });
  if (first == failed.end()) return;
  const int origin = static_cast<int>(first - failed.begin());
  char text[kMessageBytes] = {};
  if (rank == origin) std::memcpy(text, message.data(), std::min(message.size(), sizeof(text) - 1));
  std::int64_t words[sizeof(text) / sizeof(std::int64_t)];
  std::memcpy(words, text, sizeof(text));
  add(*this, words);
  std::memcpy(text, words, sizeof(text));
  const bool everywhere = std::count(failed.begin(), failed.end(), 0) == 0;
  ErrorKinds::raise(*first, everywhere ? std::string(text) : str(text, " (rank ", origin, ")"));
}

}  // namespace tessera::io
