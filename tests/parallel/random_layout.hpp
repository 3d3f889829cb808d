// Random geometry for property tests, and the seed they print.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <tessera/core/layout.hpp>
#include <vector>

namespace tessera::test {

/// TESSERA_TEST_SEED, or a fresh one. Ranks of one job must agree: pass the seed through a
/// broadcast there.
inline std::uint64_t fresh_seed() {
  if (const char* text = std::getenv("TESSERA_TEST_SEED")) return std::strtoull(text, nullptr, 10);
  return std::random_device{}();
}

class Random {
 public:
  /// Prints the seed, so that a failure can be repeated with TESSERA_TEST_SEED.
  explicit Random(const char* what, std::uint64_t seed = fresh_seed(), bool print = true)
      : engine_(seed) {
    if (print) std::cout << what << ": TESSERA_TEST_SEED=" << seed << std::endl;
  }

  /// Uniform in [lo, hi].
  std::int64_t integer(std::int64_t lo, std::int64_t hi) {
    return std::uniform_int_distribution<std::int64_t>(lo, hi)(engine_);
  }
  int number(int lo, int hi) { return static_cast<int>(integer(lo, hi)); }
  bool chance(double p) { return std::bernoulli_distribution(p)(engine_); }
  double real() { return std::uniform_real_distribution<double>(-1.0, 1.0)(engine_); }
  template <class T>
  void shuffle(std::vector<T>& values) {
    std::shuffle(values.begin(), values.end(), engine_);
  }

 private:
  std::mt19937_64 engine_;
};

/// A number in [-1, 1) that depends on all arguments.
inline double noise(std::uint64_t seed, std::initializer_list<std::int64_t> values) {
  std::uint64_t h = seed * 0x9e3779b97f4a7c15u + 1;
  for (const std::int64_t v : values) {
    h ^= static_cast<std::uint64_t>(v) + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
    h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  }
  return static_cast<double>(h >> 11) * 0x1.0p-52 - 1.0;
}

/// Random rising boundaries; small sizes give many empty parts.
inline Bounds random_bounds(Random& random, std::int64_t n, int parts) {
  if (random.chance(0.4)) return balanced_bounds(n, parts, random.integer(1, 3));
  Bounds bounds{0};
  for (int p = 1; p < parts; ++p) bounds.push_back(random.integer(0, n));
  bounds.push_back(n);
  std::sort(bounds.begin(), bounds.end());
  return bounds;
}

/// Simulated processes 0..n-1 on 1 to `axes` axes with at most `ranks` ranks.
inline Mesh random_mesh(Random& random, int axes, int ranks) {
  std::vector<MeshAxis> list;
  int size = 1;
  const int count = random.number(1, axes);
  for (int a = 0; a < count; ++a) {
    const int n = random.number(1, std::max(1, ranks / size));
    const int limited = random.chance(0.7) ? std::min(n, random.number(1, 6)) : n;
    list.push_back({std::string(1, static_cast<char>('a' + a)), limited});
    size *= limited;
  }
  std::vector<int> processes(static_cast<std::size_t>(size));
  std::iota(processes.begin(), processes.end(), 0);
  return Mesh::of(processes, list);
}

/// A random layout of `shape`: each axis splits some dimension, is Partial, or replicates.
inline Layout random_layout(Random& random, const Mesh& mesh, const Shape& shape, bool partial) {
  std::vector<DimSplit> splits(static_cast<std::size_t>(shape.size()));
  std::vector<int> axes(static_cast<std::size_t>(mesh.axis_count()));
  std::iota(axes.begin(), axes.end(), 0);
  random.shuffle(axes);
  AxisMask mask = 0;
  for (const int a : axes) {
    const int role = random.number(0, partial ? 9 : 6);
    if (role < 5 && shape.size() > 0) {
      const auto d = static_cast<std::size_t>(random.number(0, shape.size() - 1));
      splits[d].axes.push_back(a);
    } else if (role > 6) {
      mask |= AxisMask{1} << a;
    }
  }
  for (int d = 0; d < shape.size(); ++d) {
    DimSplit& split = splits[static_cast<std::size_t>(d)];
    int parts = 1;
    for (const int a : split.axes) parts *= mesh.axis_size(a);
    if (!split.axes.empty()) split.bounds = random_bounds(random, shape[d], parts);
  }
  const auto op = static_cast<ReduceOp>(random.number(0, 2));
  return Layout::make(mesh, shape, std::move(splits), mask, op);
}

}  // namespace tessera::test
