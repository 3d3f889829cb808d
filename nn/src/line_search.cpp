#include "line_search.hpp"

#include <algorithm>
#include <cmath>

namespace tessera::optim {
namespace {

constexpr double kDecrease = 1e-4;
constexpr double kCurvature = 0.9;

/// Where the cubic through both values and slopes is least, kept within [low, high].
double cubic_minimum(const LinePoint& a, const LinePoint& b, double low, double high) {
  const LinePoint& left = a.length <= b.length ? a : b;
  const LinePoint& right = a.length <= b.length ? b : a;
  const double d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.length - b.length);
  const double square = d1 * d1 - a.slope * b.slope;
  if (square >= 0) {
    const double d2 = std::sqrt(square);
    const double t =
        right.length - (right.length - left.length) *
                           ((right.slope + d2 - d1) / (right.slope - left.slope + 2 * d2));
    if (!std::isnan(t)) return std::min(std::max(t, low), high);
  }
  return (low + high) / 2.0;
}

}  // namespace

LinePoint strong_wolfe(const std::function<LinePoint(double length)>& evaluate,
                       const LinePoint& start,
                       double length,
                       double largest,
                       double tolerance,
                       std::int64_t most) {
  const auto too_high = [&](const LinePoint& p) {
    return !(p.loss <= start.loss + kDecrease * p.length * start.slope);
  };
  const auto flat = [&](const LinePoint& p) {
    return std::abs(p.slope) <= -kCurvature * start.slope;
  };
  LinePoint before = start;
  LinePoint now = evaluate(length);
  std::int64_t count = 0;
  bool bracketed = false;
  while (count < most) {
    if (too_high(now) || (count > 1 && !(now.loss < before.loss)) ||
        (!flat(now) && now.slope >= 0)) {
      bracketed = true;
      break;
    }
    if (flat(now)) return now;
    const double next = cubic_minimum(before, now, now.length + 0.01 * (now.length - before.length),
                                      now.length * 10);
    before = std::move(now);
    now = evaluate(next);
    ++count;
  }
  LinePoint low = bracketed ? std::move(before) : start;
  LinePoint high = std::move(now);
  if (high.loss < low.loss) std::swap(low, high);

  bool slow = false;  // the trial before was close to an end of the bracket
  while (count < most && std::abs(high.length - low.length) * largest >= tolerance) {
    const double left = std::min(low.length, high.length);
    const double right = std::max(low.length, high.length);
    double t = cubic_minimum(low, high, left, right);
    const double margin = 0.1 * (right - left);
    if (std::min(right - t, t - left) < margin) {
      if (slow || t >= right || t <= left) {
        t = std::abs(t - right) < std::abs(t - left) ? right - margin : left + margin;
        slow = false;
      } else {
        slow = true;
      }
    } else {
      slow = false;
    }
    LinePoint trial = evaluate(t);
    ++count;
    if (too_high(trial) || !(trial.loss < low.loss)) {
      high = std::move(trial);
      if (high.loss < low.loss) std::swap(low, high);
      continue;
    }
    const bool done = flat(trial);
    if (!done && trial.slope * (high.length - low.length) >= 0) high = low;
    low = std::move(trial);
    if (done) break;
  }
  return low;
}

}  // namespace tessera::optim
