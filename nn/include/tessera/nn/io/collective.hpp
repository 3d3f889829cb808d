#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tessera::io {

/// The ranks that read or write one file together. The default is this process alone.
///
/// `sum` is the only primitive; it is called by all ranks in the same order. Everything else is
/// made of it.
struct Collective {
  int rank = 0;
  int size = 1;
  /// Adds `values` up element by element over the ranks, in place. May be empty when `size` is 1.
  std::function<void(std::span<std::int64_t>)> sum;

  /// Sum of `value` over the ranks.
  std::int64_t total(std::int64_t value) const;
  /// Sums element by element, added in rank order: the same to the bit on every rank and in every
  /// run.
  std::vector<double> total(const std::vector<double>& values) const;
  /// The value of rank 0.
  std::int64_t broadcast(std::int64_t value) const;
  /// Fills the gaps of `values`: each element is set by exactly one rank and zero (all bits) on the
  /// others. Exact.
  void combine(std::span<double> values) const;
  void barrier() const { total(0); }

  /// Runs `f` here and waits for the others. When it throws on some rank, every rank throws: the
  /// message of the lowest failed rank, as the same kind of Error. Without a failure one call of
  /// `sum`.
  void together(const std::function<void()>& f) const;
};

}  // namespace tessera::io
