#include <algorithm>
#include <tessera/kernels/local_attention.hpp>

namespace tessera::kernels {

namespace {

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}

/// Members of the class of `residue`.
std::int64_t members(const LocalRule& rule, std::int64_t residue) {
  return (rule.size - residue + rule.dilation - 1) / rule.dilation;
}

/// The window of member `a` of a class of `m`, in members.
Interval window_of(const LocalRule& rule, std::int64_t a, std::int64_t m) {
  if (rule.circular != 0) {
    const std::int64_t turn = floor_div(a, m) * m;
    const std::int64_t group = (a - turn) / rule.stride * rule.stride + turn;
    if (rule.causal != 0) return {group + rule.stride - rule.extent, a + 1};
    const std::int64_t lo = group + rule.stride / 2 - rule.extent / 2;
    return {lo, lo + rule.extent};
  }
  const std::int64_t group = a / rule.stride * rule.stride;
  if (rule.causal != 0) {
    const std::int64_t leader = std::min(group + rule.stride - 1, m - 1);
    return {std::max<std::int64_t>(leader - rule.extent + 1, 0), a + 1};
  }
  const std::int64_t leader = std::min(group + rule.stride / 2, m - 1);
  const std::int64_t lo = std::clamp<std::int64_t>(leader - rule.extent / 2, 0,
                                                   std::max<std::int64_t>(0, m - rule.extent));
  return {lo, lo + rule.extent};
}

/// The first of [lo, hi) for which `f` holds, where it holds for all behind the first; hi if none.
template <class F>
std::int64_t first_of(std::int64_t lo, std::int64_t hi, const F& f) {
  while (lo < hi) {
    const std::int64_t middle = lo + (hi - lo) / 2;
    if (f(middle)) {
      hi = middle;
    } else {
      lo = middle + 1;
    }
  }
  return lo;
}

/// The hull of runs of all coordinates from `in.lo` on and of all before `in.hi`. In one class both
/// ends of the runs grow, so the nearest member of each class decides.
template <class F>
Interval hull(const LocalRule& rule, Interval in, const F& run_of) {
  Interval result{run_of(in.lo).first, 0};
  for (std::int64_t i = in.lo; i < std::min(rule.size, in.lo + rule.dilation); ++i)
    result.lo = std::min(result.lo, run_of(i).first);
  bool any = false;
  for (std::int64_t i = in.hi - 1; i >= std::max<std::int64_t>(0, in.hi - rule.dilation); --i) {
    const LocalRun run = run_of(i);
    const std::int64_t end = run.first + (run.count - 1) * rule.dilation + 1;
    result.hi = any ? std::max(result.hi, end) : end;
    any = true;
  }
  return result;
}

}  // namespace

LocalRun LocalRule::keys(std::int64_t query) const {
  if (blocks != 0) {
    const std::int64_t lo = shift + floor_div(query - shift, extent) * extent;
    if (circular != 0) return {lo, extent};
    const Interval block = intersect({lo, lo + extent}, {0, size});
    return {block.lo, block.size()};
  }
  const std::int64_t residue = query % dilation;
  const Interval window = window_of(*this, query / dilation, members(*this, residue));
  return {residue + window.lo * dilation, window.size()};
}

LocalRun LocalRule::queries(std::int64_t key) const {
  if (blocks != 0) return keys(key);
  const std::int64_t residue = key % dilation;
  const std::int64_t b = key / dilation;
  const std::int64_t m = members(*this, residue);
  // A query lies in its window, so it is less than `extent` away.
  Interval near{b - extent + 1, b + extent};
  if (circular == 0) near = intersect(near, {0, m});
  const std::int64_t lo =
      first_of(near.lo, near.hi, [&](std::int64_t a) { return window_of(*this, a, m).hi > b; });
  const std::int64_t hi =
      first_of(near.lo, near.hi, [&](std::int64_t a) { return window_of(*this, a, m).lo > b; });
  return {residue + lo * dilation, hi - lo};
}

Interval LocalRule::keys_needed(Interval in) const {
  return hull(*this, in, [this](std::int64_t i) { return keys(i); });
}

Interval LocalRule::queries_needed(Interval in) const {
  return hull(*this, in, [this](std::int64_t j) { return queries(j); });
}

bool LocalRule::uneven() const {
  if (blocks != 0) return circular == 0 && (shift != 0 || size % extent != 0);
  return causal != 0 && extent > 1 && (circular == 0 || stride > 1);
}

}  // namespace tessera::kernels
