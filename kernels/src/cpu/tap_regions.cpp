#include "cpu/tap_regions.hpp"

#include <algorithm>
#include <utility>

namespace tessera::kernels::cpu {

namespace {

/// Outputs q0 .. q0 + extent - 1 of one dimension that see the same taps.
struct Segment {
  std::int64_t extent = 0;
  std::int64_t in_base = 0, in_step = 0;
  std::int64_t out_base = 0, out_step = 0;
  std::vector<std::int64_t> tap_in;
  std::vector<std::int64_t> tap;
};

struct Side {
  Interval box;
  std::int64_t stride = 0;
};

/// Out positions q * out_every + out_first read in positions q * in_every + shift[t].
struct Progression {
  std::int64_t in_every = 1;
  std::int64_t out_every = 1, out_first = 0;
  std::vector<std::int64_t> tap, shift;
};

void add_segments(const Progression& p, const Side& in, const Side& out, std::vector<Segment>& to) {
  const Interval q{ceil_div(out.box.lo - p.out_first, p.out_every),
                   ceil_div(out.box.hi - p.out_first, p.out_every)};
  if (q.empty()) return;
  std::vector<Interval> valid;
  std::vector<std::int64_t> cuts{q.lo, q.hi};
  for (const std::int64_t shift : p.shift) {
    valid.push_back(intersect(
        q, {ceil_div(in.box.lo - shift, p.in_every), ceil_div(in.box.hi - shift, p.in_every)}));
    if (valid.back().empty()) continue;
    cuts.push_back(valid.back().lo);
    cuts.push_back(valid.back().hi);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    Segment s;
    const std::int64_t q0 = cuts[i];
    s.extent = cuts[i + 1] - q0;
    s.in_base = (q0 * p.in_every - in.box.lo) * in.stride;
    s.in_step = p.in_every * in.stride;
    s.out_base = (q0 * p.out_every + p.out_first - out.box.lo) * out.stride;
    s.out_step = p.out_every * out.stride;
    for (std::size_t t = 0; t < p.tap.size(); ++t) {
      if (valid[t].empty() || !valid[t].contains({q0, cuts[i + 1]})) continue;
      s.tap.push_back(p.tap[t]);
      s.tap_in.push_back(p.shift[t] * in.stride);
    }
    to.push_back(std::move(s));
  }
}

std::vector<Segment> segments(const TapAxis& a,
                              TapDirection direction,
                              const Side& in,
                              const Side& out) {
  std::vector<Segment> result;
  if (direction == TapDirection::kForward) {
    Progression p;
    p.in_every = a.stride;
    for (std::int64_t t = 0; t < a.kernel; ++t) {
      p.tap.push_back(t);
      p.shift.push_back(t * a.dilation - a.pad);
    }
    add_segments(p, in, out, result);
    return result;
  }
  for (std::int64_t residue = 0; residue < a.stride; ++residue) {
    Progression p;
    p.out_every = a.stride;
    p.out_first = residue;
    for (std::int64_t t = 0; t < a.kernel; ++t) {
      const std::int64_t distance = residue + a.pad - t * a.dilation;
      if (distance % a.stride != 0) continue;
      p.tap.push_back(t);
      p.shift.push_back(distance / a.stride);
    }
    add_segments(p, in, out, result);
  }
  return result;
}

}  // namespace

void PixelBox::arrange(bool merge) {
  constexpr std::size_t kRow = kPixelDims - 1;
  constexpr std::int64_t kLongEnough = 8;
  const PixelBox from = *this;
  extent = {1, 1, 1, 1};
  in_step = out_step = {};
  std::size_t used = 0;
  for (std::size_t d = kPixelDims; d-- > 0;) {
    if (from.extent[d] == 1) continue;
    if (merge && used > 0) {
      const std::size_t inner = kPixelDims - used;
      if (from.in_step[d] == extent[inner] * in_step[inner] &&
          from.out_step[d] == extent[inner] * out_step[inner]) {
        extent[inner] *= from.extent[d];
        continue;
      }
    }
    const std::size_t slot = kRow - used++;
    extent[slot] = from.extent[d];
    in_step[slot] = from.in_step[d];
    out_step[slot] = from.out_step[d];
  }
  std::size_t best = kRow;
  for (std::size_t d = kRow; d-- > 0;)
    if (extent[best] < kLongEnough && extent[d] > extent[best]) best = d;
  std::swap(extent[best], extent[kRow]);
  std::swap(in_step[best], in_step[kRow]);
  std::swap(out_step[best], out_step[kRow]);
}

std::vector<TapRegion> tap_regions(const std::vector<TapAxis>& axes,
                                   TapDirection direction,
                                   const Piece& in,
                                   const Piece& out,
                                   bool merge) {
  std::vector<TapRegion> regions;
  if (out.box.empty()) return regions;
  const int domain = static_cast<int>(axes.size());
  std::array<std::vector<Segment>, 3> parts;
  std::array<std::int64_t, 3> kernel{1, 1, 1};
  for (int d = 0; d < 3; ++d) {
    const auto slot = static_cast<std::size_t>(d);
    const int from = d - (3 - domain);  // missing leading dimensions have size 1
    if (from < 0) {
      parts[slot] = {{1, 0, 0, 0, 0, {0}, {0}}};
      continue;
    }
    const TapAxis& axis = axes[static_cast<std::size_t>(from)];
    kernel[slot] = axis.kernel;
    parts[slot] = segments(axis, direction, {in.box[from + 1], in.view.strides[from + 1]},
                           {out.box[from + 1], out.view.strides[from + 1]});
  }
  for (const Segment& s0 : parts[0])
    for (const Segment& s1 : parts[1])
      for (const Segment& s2 : parts[2]) {
        TapRegion r;
        r.extent = {out.box[0].size(), s0.extent, s1.extent, s2.extent};
        r.in_step = {in.view.strides[0], s0.in_step, s1.in_step, s2.in_step};
        r.out_step = {out.view.strides[0], s0.out_step, s1.out_step, s2.out_step};
        r.in_base = (out.box.lo[0] - in.box.lo[0]) * in.view.strides[0] + s0.in_base + s1.in_base +
                    s2.in_base;
        r.out_base = s0.out_base + s1.out_base + s2.out_base;
        for (std::size_t a = 0; a < s0.tap.size(); ++a)
          for (std::size_t b = 0; b < s1.tap.size(); ++b)
            for (std::size_t c = 0; c < s2.tap.size(); ++c) {
              r.tap.push_back((s0.tap[a] * kernel[1] + s1.tap[b]) * kernel[2] + s2.tap[c]);
              r.tap_in.push_back(s0.tap_in[a] + s1.tap_in[b] + s2.tap_in[c]);
            }
        r.arrange(merge);
        regions.push_back(std::move(r));
      }
  return regions;
}

std::vector<RegionTile> region_tiles(const std::vector<TapRegion>& regions, std::int64_t pixels) {
  std::vector<RegionTile> tiles;
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const TapRegion& r = regions[i];
    const auto id = static_cast<std::int32_t>(i);
    const std::int64_t cuts = (r.row() + pixels - 1) / pixels;
    const std::int64_t rows = cuts > 1 ? 1 : std::max<std::int64_t>(1, pixels / r.row());
    for (std::int64_t row = 0; row < r.rows(); row += rows)
      for (std::int64_t c = 0; c < cuts; ++c)
        tiles.push_back({id, row, std::min(row + rows, r.rows()), r.row() * c / cuts,
                         r.row() * (c + 1) / cuts});
  }
  return tiles;
}

}  // namespace tessera::kernels::cpu
