#include <cmath>
#include <tessera/kernels/rotary.hpp>
#include <type_traits>
#include <vector>

#include "cpu/tiles.hpp"

namespace tessera::kernels {

namespace {

constexpr std::int64_t kBlockPositions = 64;

/// cos and sin of one pair at `position = 64 block + rest` from those of the two terms: few are
/// computed, and the result follows from the position alone.
class AngleTables {
 public:
  AngleTables(std::span<const RotaryPair> pairs, const Box& box) : pairs_(pairs) {
    for (const RotaryPair& pair : pairs) {
      const Interval owned = box[1 + pair.dim];
      first_block_.push_back(owned.lo / kBlockPositions);
      block_start_.push_back(blocks_.size());
      for (std::int64_t b = first_block_.back(); b * kBlockPositions < owned.hi; ++b)
        blocks_.push_back(turn(pair.step * static_cast<double>(b * kBlockPositions)));
      for (std::int64_t r = 0; r < kBlockPositions; ++r)
        rests_.push_back(turn(pair.step * static_cast<double>(r)));
    }
  }

  /// cos and sin of every pair at a position of the domain.
  template <class T>
  void at(const Index& position, T* cosine, T* sine) const {
    for (std::size_t p = 0; p < pairs_.size(); ++p) {
      const std::int64_t i = position[pairs_[p].dim];
      const auto block = static_cast<std::size_t>(i / kBlockPositions - first_block_[p]);
      const Turn& a = blocks_[block_start_[p] + block];
      const Turn& b = rests_[p * kBlockPositions + static_cast<std::size_t>(i % kBlockPositions)];
      cosine[p] = static_cast<T>(a.cosine * b.cosine - a.sine * b.sine);
      sine[p] = static_cast<T>(a.sine * b.cosine + a.cosine * b.sine);
    }
  }

 private:
  struct Turn {
    double cosine, sine;
  };
  static Turn turn(double angle) { return {std::cos(angle), std::sin(angle)}; }

  std::span<const RotaryPair> pairs_;
  std::vector<std::int64_t> first_block_;
  std::vector<std::size_t> block_start_;
  std::vector<Turn> blocks_, rests_;
};

/// Turns one head.
template <class T>
void turn_row(const T* x, const T* cosine, const T* sine, std::int64_t pairs, T* y) {
#pragma omp simd
  for (std::int64_t p = 0; p < pairs; ++p) {
    const T a = x[p];
    const T b = x[p + pairs];
    y[p] = a * cosine[p] - b * sine[p];
    y[p + pairs] = a * sine[p] + b * cosine[p];
  }
}

template <class T>
void turn_all(const AngleTables& tables, bool inverse, const View& x, const Piece& y) {
  const int heads_dim = x.dims() - 2;
  const std::int64_t heads = x.shape[heads_dim];
  const std::int64_t channels = x.shape.back();
  std::int64_t tokens = 1;
  for (int d = 0; d < heads_dim; ++d) tokens *= x.shape[d];
  const auto size = static_cast<std::int64_t>(size_of(x.dtype));
  const bool in_place = x.dtype == dtype_of<T> && x.strides.back() == 1;
  const bool out_in_place = y.view.dtype == dtype_of<T> && y.view.strides.back() == 1;

  parallel_chunks(tokens, heads * channels, [&](std::int64_t begin, std::int64_t end) {
    const auto width = static_cast<std::size_t>(channels);
    std::vector<T> cosine(width / 2), sine(width / 2), in(width), out(width);
    Index position;
    position.resize(heads_dim - 1);
    for (std::int64_t token = begin; token < end; ++token) {
      std::int64_t rest = token;
      std::int64_t from = 0;
      std::int64_t to = 0;
      for (int d = heads_dim - 1; d >= 0; --d) {
        const std::int64_t i = rest % x.shape[d];
        rest /= x.shape[d];
        from += i * x.strides[d];
        to += i * y.view.strides[d];
        if (d > 0) position[d - 1] = i + y.box[d].lo;
      }
      tables.at(position, cosine.data(), sine.data());
      if (inverse)
        for (T& s : sine) s = -s;
      for (std::int64_t h = 0; h < heads; ++h) {
        const char* const row = x.as<char>() + size * (from + h * x.strides[heads_dim]);
        char* const result = y.view.as<char>() + size * (to + h * y.view.strides[heads_dim]);
        if (!in_place) load(row, x.dtype, x.strides.back(), channels, in.data());
        turn_row(in_place ? reinterpret_cast<const T*>(row) : in.data(), cosine.data(), sine.data(),
                 channels / 2, out.data());
        if (out_in_place) {
          std::copy(out.begin(), out.end(), reinterpret_cast<T*>(result));
        } else {
          store(out.data(), channels, result, y.view.dtype, y.view.strides.back());
        }
      }
    }
  });
}

}  // namespace

void rotary(std::span<const RotaryPair> pairs, bool inverse, const View& x, const Piece& y) {
  const int domain = x.dims() - 3;
  if (!(x.shape == y.view.shape) || domain < 1 ||
      x.shape.back() != 2 * static_cast<std::int64_t>(pairs.size())) {
    throw ShapeError(str("rotary: ", x.shape, " and ", y.view.shape, " with ", pairs.size(),
                         " pairs are not [N, domain..., H, 2 pairs]."));
  }
  for (const RotaryPair& pair : pairs) {
    if (pair.dim < 0 || pair.dim >= domain)
      throw ShapeError(str("rotary: a pair turns along dimension ", pair.dim, " of ", domain, "."));
  }
  if (x.dtype != y.view.dtype || !is_floating(x.dtype))
    throw DTypeError(str("rotary: ", name(x.dtype), " -> ", name(y.view.dtype), "."));
  if (x.empty()) return;
  const AngleTables tables(pairs, y.box);
  visit_compute_type(x.dtype, [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) turn_all<T>(tables, inverse, x, y);
  });
}

}  // namespace tessera::kernels
