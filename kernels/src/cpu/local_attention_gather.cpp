#include <algorithm>
#include <tessera/core/dry_run.hpp>

#include "cpu/local_attention_tiles.hpp"

namespace tessera::kernels {

namespace {

using namespace cpu;

constexpr Place kOnes{1, 1, 1};
constexpr AxisOrder kOrders[] = {{-1, -1, 0}, {-1, 0, 1}, {0, 1, 2}};

/// What gather and its adjoint share: x [N, domain..., H, C] and y [N, domain..., places, H, C] as
/// rows; y has its places where rows have heads, so that a head is a view of it.
struct Sides {
  int dims;
  std::int64_t samples, heads, width;
  Place extent = kOnes;
  std::array<LocalRule, 3> rules = {};  ///< leading dimensions have size 1

  Sides(const Piece& x, const LocalOptions& options, const Piece& y) : dims(x.view.dims() - 3) {
    bool fits = dims >= 1 && dims <= 3 && y.view.dims() == dims + 4 && x.box.dims() == dims + 3 &&
                y.box.dims() == dims + 4;
    for (int d = 0; fits && d < dims; ++d) {
      const LocalRule& rule = options.rules[static_cast<std::size_t>(d)];
      fits = x.global[d + 1] == rule.size && y.global[d + 1] == rule.size;
      rules[static_cast<std::size_t>(3 - dims + d)] = rule;
      extent[static_cast<std::size_t>(3 - dims + d)] = rule.extent;
    }
    fits = fits && x.box[0] == y.box[0] && x.box[dims + 1] == y.box[dims + 2] &&
           x.box[dims + 2] == y.box[dims + 3] &&
           y.view.shape[dims + 1] == extent[0] * extent[1] * extent[2];
    if (!fits || x.view.dtype != y.view.dtype) {
      throw ShapeError(str("local_gather: ", name(x.view.dtype), " ", x.global, " (part ", x.box,
                           ") and ", name(y.view.dtype), " ", y.global, " (part ", y.box,
                           ") do not belong together."));
    }
    samples = x.view.shape[0];
    heads = x.view.shape[dims + 1];
    width = x.view.shape[dims + 2];
  }

  LocalRows rows(const Piece& piece) const { return {piece, kOrders[dims - 1], true}; }
  /// One head of y with the places as heads.
  LocalRows places(const Piece& y, std::int64_t head) const {
    Piece p = y;
    p.view.data = p.view.as<char>() + head * y.view.strides[dims + 2] *
                                          static_cast<std::int64_t>(size_of(y.view.dtype));
    p.view.shape.erase(dims + 2);
    p.view.strides.erase(dims + 2);
    p.box.lo.erase(dims + 2);
    p.box.hi.erase(dims + 2);
    p.global.erase(dims + 2);
    return rows(p);
  }
  Interval along(const Piece& piece, std::size_t d) const {
    const int dim = static_cast<int>(d) - 3 + dims;
    return dim < 0 ? Interval{0, 1} : piece.box[dim + 1];
  }
  /// f(coordinates) for those of the piece, on threads by its outermost rows.
  template <class F>
  void for_each(const Piece& piece, const F& f) const {
    const Interval a = along(piece, 0), b = along(piece, 1), c = along(piece, 2);
    const std::int64_t rows = a.size() * b.size();
    const double work =
        static_cast<double>(rows * c.size() * extent[0] * extent[1] * extent[2] * width);
    for_each_tile(rows, tile_threads(rows, work), [&](std::int64_t row) {
      for (std::int64_t i = c.lo; i < c.hi; ++i)
        f(Place{a.lo + row / b.size(), b.lo + row % b.size(), i});
    });
  }
};

template <class T>
void gather(const Sides& sides, const Piece& x, const Piece& y) {
  const LocalRows from = sides.rows(x);
  for (std::int64_t h = 0; h < sides.heads; ++h) {
    const LocalRows to = sides.places(y, h);
    const std::int64_t head = x.box.lo[sides.dims + 1] + h;
    sides.for_each(y, [&](const Place& i) {
      std::vector<T> row(static_cast<std::size_t>(sides.width));
      const std::vector<T> zeros(row.size());
      std::array<LocalRun, 3> runs;
      for (std::size_t d = 0; d < 3; ++d) runs[d] = sides.rules[d].keys(i[d]);
      for (std::int64_t n = 0; n < sides.samples; ++n) {
        std::int64_t place = 0;
        for (std::int64_t a = 0; a < sides.extent[0]; ++a) {
          for (std::int64_t b = 0; b < sides.extent[1]; ++b) {
            for (std::int64_t c = 0; c < sides.extent[2]; ++c, ++place) {
              const bool none = a >= runs[0].count || b >= runs[1].count || c >= runs[2].count;
              const Place j{runs[0].first + a * sides.rules[0].dilation,
                            runs[1].first + b * sides.rules[1].dilation,
                            runs[2].first + c * sides.rules[2].dilation};
              if (!none) {
                from.read_row(from.at(n, j, head), row.data());
              }
              to.write_row(to.at(n, i, place), none ? zeros.data() : row.data());
            }
          }
        }
      }
    });
  }
}

/// A query that sees a key, and at which place of its window.
struct Seen {
  std::int64_t query, place;
};

std::vector<Seen> seen_by(const LocalRule& rule, std::int64_t key) {
  std::vector<Seen> result;
  const LocalRun run = rule.queries(key);
  for (std::int64_t u = 0; u < run.count; ++u) {
    const std::int64_t i = run.first + u * rule.dilation;
    const std::int64_t inside = (i % rule.size + rule.size) % rule.size;
    const std::int64_t first = rule.keys(inside).first + i - inside;
    result.push_back({i, (key - first) / rule.dilation});
  }
  return result;
}

template <class T>
void scatter(const Sides& sides, const Piece& y, const Piece& x) {
  const LocalRows to = sides.rows(x);
  for (std::int64_t h = 0; h < sides.heads; ++h) {
    const LocalRows from = sides.places(y, h);
    const std::int64_t head = x.box.lo[sides.dims + 1] + h;
    sides.for_each(x, [&](const Place& j) {
      std::vector<T> row(static_cast<std::size_t>(sides.width)), sum(row.size());
      std::array<std::vector<Seen>, 3> seen;
      for (std::size_t d = 0; d < 3; ++d) seen[d] = seen_by(sides.rules[d], j[d]);
      for (std::int64_t n = 0; n < sides.samples; ++n) {
        std::fill(sum.begin(), sum.end(), T(0));
        for (const Seen& a : seen[0]) {
          for (const Seen& b : seen[1]) {
            for (const Seen& c : seen[2]) {
              const std::int64_t place =
                  (a.place * sides.extent[1] + b.place) * sides.extent[2] + c.place;
              from.read_row(from.at(n, {a.query, b.query, c.query}, place), row.data());
              for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += row[i];
            }
          }
        }
        to.write_row(to.at(n, j, head), sum.data());
      }
    });
  }
}

}  // namespace

void local_gather(const Piece& x, const LocalOptions& options, const Piece& y) {
  const Sides sides(x, options, y);
  if (y.view.empty() || dry_run()) return;
  if (x.view.dtype == DType::kFloat64) {
    gather<double>(sides, x, y);
  } else {
    gather<float>(sides, x, y);
  }
}

void local_scatter(const Piece& y, const LocalOptions& options, const Piece& x) {
  const Sides sides(x, options, y);
  if (x.view.empty() || dry_run()) return;
  if (x.view.dtype == DType::kFloat64) {
    scatter<double>(sides, y, x);
  } else {
    scatter<float>(sides, y, x);
  }
}

}  // namespace tessera::kernels
