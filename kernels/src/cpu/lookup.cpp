#include <algorithm>
#include <cstring>
#include <tessera/core/dry_run.hpp>
#include <tessera/kernels/lookup.hpp>
#include <vector>

#include "launch.hpp"

namespace tessera::kernels {

namespace {

void check(const char* op, const View& rows, const View& per_m, const View& index, const View& w) {
  const bool dims = rows.dims() == 2 && per_m.dims() == 2 && index.dims() == 2;
  bool fits = dims && rows.shape[1] == per_m.shape[1] && per_m.shape[0] == index.shape[0];
  if (w.data != nullptr) fits = fits && w.shape == index.shape && w.is_dense();
  if (!fits || !rows.is_dense() || !per_m.is_dense() || !index.is_dense()) {
    throw ShapeError(str(op, ": rows ", rows.shape, ", values ", per_m.shape, " and index ",
                         index.shape, " do not fit, or are not dense."));
  }
  if (rows.dtype != per_m.dtype || index.dtype != DType::kInt64)
    throw DTypeError(str(op, ": element types ", name(rows.dtype), ", ", name(per_m.dtype),
                         " and index ", name(index.dtype), " do not go together."));
}

template <class T>
using Sum = std::conditional_t<std::is_integral_v<T>,
                               std::int64_t,
                               std::conditional_t<std::is_same_v<T, double>, double, float>>;
template <class T>
using WideSum = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;

template <class Acc, class T>
Acc widened(T value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return static_cast<Acc>(static_cast<float>(value));
  } else {
    return static_cast<Acc>(value);
  }
}

template <class T, class Acc>
T narrowed(Acc value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return BFloat16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

/// The weights of [first, first + n) of the flattened index: where they lie, or in `to`.
template <class Acc>
const Acc* weights_of(const View& w, std::int64_t first, std::int64_t n, Acc* to) {
  if (w.data == nullptr) {
    std::fill_n(to, n, Acc(1));
    return to;
  }
  if (w.dtype == dtype_of<Acc>) return w.as<const Acc>() + first;
  load(w.as<const char>() + first * static_cast<std::int64_t>(size_of(w.dtype)), w.dtype, 1, n, to);
  return to;
}

template <class T>
void copy_rows(const View& x, const View& index, const View& y) {
  const std::int64_t width = y.shape[1];
  parallel_chunks(y.shape[0], width, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t m = begin; m < end; ++m) {
      const std::int64_t r = index.as<const std::int64_t>()[m];
      T* const to = y.as<T>() + m * width;
      if (r < 0) {
        std::fill_n(to, width, T{});
      } else {
        std::copy_n(x.as<const T>() + r * width, width, to);
      }
    }
  });
}

template <class T>
void sum_rows(const View& x, const View& index, const View& w, const View& y) {
  using Acc = Sum<T>;
  const std::int64_t width = y.shape[1];
  const std::int64_t taps = index.shape[1];
  parallel_chunks(y.shape[0], width * (1 + taps), [&](std::int64_t begin, std::int64_t end) {
    alignas(64) Acc acc[kBlock];
    std::vector<Acc> loaded(static_cast<std::size_t>(taps));
    for (std::int64_t m = begin; m < end; ++m) {
      const std::int64_t* const rows = index.as<const std::int64_t>() + m * taps;
      const Acc* const weight = weights_of(w, m * taps, taps, loaded.data());
      for (std::int64_t c = 0; c < width; c += kBlock) {
        const std::int64_t n = std::min(kBlock, width - c);
        std::fill_n(acc, n, Acc(0));
        for (std::int64_t k = 0; k < taps; ++k) {
          if (rows[k] < 0) continue;
          const T* const row = x.as<const T>() + rows[k] * width + c;
          const Acc factor = weight[k];
          for (std::int64_t e = 0; e < n; ++e) acc[e] += factor * widened<Acc>(row[e]);
        }
        T* const to = y.as<T>() + m * width + c;
        for (std::int64_t e = 0; e < n; ++e) to[e] = narrowed<T>(acc[e]);
      }
    }
  });
}

/// The same for few channels, in registers.
template <class T, int kWidth>
void sum_short_rows(const View& x, const View& index, const View& w, const View& y) {
  using Acc = Sum<T>;
  const std::int64_t taps = index.shape[1];
  parallel_chunks(y.shape[0], kWidth * (1 + taps), [&](std::int64_t begin, std::int64_t end) {
    std::vector<Acc> loaded(static_cast<std::size_t>(taps));
    for (std::int64_t m = begin; m < end; ++m) {
      const std::int64_t* const rows = index.as<const std::int64_t>() + m * taps;
      const Acc* const weight = weights_of(w, m * taps, taps, loaded.data());
      Acc acc[kWidth] = {};
      for (std::int64_t k = 0; k < taps; ++k) {
        if (rows[k] < 0) continue;
        const T* const row = x.as<const T>() + rows[k] * kWidth;
        for (int c = 0; c < kWidth; ++c) acc[c] += weight[k] * widened<Acc>(row[c]);
      }
      for (int c = 0; c < kWidth; ++c) y.as<T>()[m * kWidth + c] = narrowed<T>(acc[c]);
    }
  });
}

template <class T>
void sum_any_rows(const View& x, const View& index, const View& w, const View& y) {
  switch (y.shape[1]) {
    case 1:
      return sum_short_rows<T, 1>(x, index, w, y);
    case 2:
      return sum_short_rows<T, 2>(x, index, w, y);
    case 3:
      return sum_short_rows<T, 3>(x, index, w, y);
    case 4:
      return sum_short_rows<T, 4>(x, index, w, y);
    case 8:
      return sum_short_rows<T, 8>(x, index, w, y);
    case 16:
      return sum_short_rows<T, 16>(x, index, w, y);
    default:
      return sum_rows<T>(x, index, w, y);
  }
}

/// For each row the places in the flattened index that name it, in rising order.
struct Readers {
  std::vector<std::int64_t> begin;  // [rows + 1]
  std::vector<std::int64_t> place;

  Readers(const std::int64_t* index, std::int64_t count, std::int64_t rows)
      : begin(static_cast<std::size_t>(rows) + 1, 0) {
    for (std::int64_t i = 0; i < count; ++i)
      if (index[i] >= 0) ++begin[static_cast<std::size_t>(index[i]) + 1];
    for (std::size_t r = 1; r < begin.size(); ++r) begin[r] += begin[r - 1];
    place.resize(static_cast<std::size_t>(begin.back()));
    std::vector<std::int64_t> next(begin.begin(), begin.end() - 1);
    for (std::int64_t i = 0; i < count; ++i)
      if (index[i] >= 0)
        place[static_cast<std::size_t>(next[static_cast<std::size_t>(index[i])]++)] = i;
  }
};

/// The same sums, bit for bit, where one thread works: values in their order, into rows of the type
/// that sums have.
template <class T>
void add_in_turn(LookupAdd kind, const View& g, const View& index, const View& w, const View& y) {
  using Acc = WideSum<T>;
  const std::int64_t width = y.shape[1];
  const std::int64_t taps = index.shape[1];
  std::vector<Acc> sums(static_cast<std::size_t>(y.size()), Acc(0));
  for (std::int64_t m = 0; m < g.shape[0]; ++m) {
    const T* const row = g.as<const T>() + m * width;
    for (std::int64_t k = 0; k < taps; ++k) {
      const std::int64_t r = index.as<const std::int64_t>()[m * taps + k];
      if (r < 0) continue;
      Acc* const to = sums.data() + r * width;
      if (kind == LookupAdd::kMax) {
        for (std::int64_t c = 0; c < width; ++c) to[c] = std::max(to[c], widened<Acc>(row[c]));
        continue;
      }
      Acc loaded;
      const Acc factor = *weights_of(w, m * taps + k, 1, &loaded);
      for (std::int64_t c = 0; c < width; ++c) to[c] += factor * widened<Acc>(row[c]);
    }
  }
  store(sums.data(), y.size(), y.data, y.dtype, 1);
}

template <class T>
void add_rows(LookupAdd kind, const View& g, const View& index, const View& w, const View& y) {
  using Acc = WideSum<T>;
  const std::int64_t width = y.shape[1];
  const std::int64_t taps = index.shape[1];
  const Readers readers(index.as<const std::int64_t>(), index.size(), y.shape[0]);
  const std::int64_t cost = width * (1 + index.size() / std::max<std::int64_t>(1, y.shape[0]));
  parallel_chunks(y.shape[0], cost, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) Acc acc[kBlock];
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t from = readers.begin[static_cast<std::size_t>(r)];
      const std::int64_t to = readers.begin[static_cast<std::size_t>(r) + 1];
      for (std::int64_t c = 0; c < width; c += kBlock) {
        const std::int64_t n = std::min(kBlock, width - c);
        std::fill_n(acc, n, Acc(0));
        for (std::int64_t p = from; p < to; ++p) {
          const std::int64_t i = readers.place[static_cast<std::size_t>(p)];
          const T* const row = g.as<const T>() + i / taps * width + c;
          if (kind == LookupAdd::kMax) {
            for (std::int64_t e = 0; e < n; ++e) acc[e] = std::max(acc[e], widened<Acc>(row[e]));
            continue;
          }
          Acc loaded;
          const Acc factor = *weights_of(w, i, 1, &loaded);
          for (std::int64_t e = 0; e < n; ++e) acc[e] += factor * widened<Acc>(row[e]);
        }
        T* const out = y.as<T>() + r * width + c;
        for (std::int64_t e = 0; e < n; ++e) out[e] = narrowed<T>(acc[e]);
      }
    }
  });
}

template <class T>
void dot_rows(const View& x, const View& g, const View& index, const View& y) {
  const std::int64_t width = x.shape[1];
  const std::int64_t taps = index.shape[1];
  parallel_chunks(g.shape[0], width * taps, [&](std::int64_t begin, std::int64_t end) {
    std::vector<double> sums(static_cast<std::size_t>(taps));
    for (std::int64_t m = begin; m < end; ++m) {
      const T* const value = g.as<const T>() + m * width;
      for (std::int64_t k = 0; k < taps; ++k) {
        const std::int64_t r = index.as<const std::int64_t>()[m * taps + k];
        double sum = 0;
        if (r >= 0) {
          const T* const row = x.as<const T>() + r * width;
          for (std::int64_t c = 0; c < width; ++c)
            sum += widened<double>(row[c]) * widened<double>(value[c]);
        }
        sums[static_cast<std::size_t>(k)] = sum;
      }
      store(sums.data(), taps,
            y.as<char>() + m * taps * static_cast<std::int64_t>(size_of(y.dtype)), y.dtype, 1);
    }
  });
}

}  // namespace

void lookup(const View& x, const View& index, const View& w, const View& y) {
  check("lookup", x, y, index, w);
  if (dry_run() || y.empty()) return;
  visit_dtype(x.dtype, [&]<class T>() {
    if (index.shape[1] == 1 && w.data == nullptr) {
      copy_rows<T>(x, index, y);
    } else {
      sum_any_rows<T>(x, index, w, y);
    }
  });
}

void lookup_add(LookupAdd kind, const View& g, const View& index, const View& w, const View& y) {
  check("lookup_add", y, g, index, w);
  if (dry_run() || y.empty()) return;
  const bool alone = thread_count() == 1 || g.size() * index.shape[1] < kParallelElements;
  visit_dtype(y.dtype,
              [&]<class T>() { (alone ? add_in_turn<T> : add_rows<T>)(kind, g, index, w, y); });
}

void lookup_dot(const View& x, const View& g, const View& index, const View& y) {
  check("lookup_dot", x, g, index, View{});
  if (!(y.shape == index.shape) || !y.is_dense())
    throw ShapeError(
        str("lookup_dot: result ", y.shape, " is not that of index ", index.shape, "."));
  if (dry_run() || y.empty()) return;
  visit_floating("lookup_dot", x.dtype, [&]<class T>() { dot_rows<T>(x, g, index, y); });
}

}  // namespace tessera::kernels
