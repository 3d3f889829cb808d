#include "support/op_test.hpp"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <random>
#include <tessera/parallel/communicator.hpp>
#include <tessera/parallel/stats.hpp>

namespace tessera::test {

std::string check_op(const OpCase& c) {
  std::string failure;
  if (process().count == 1) {
    failure += check_value(c);
    if (failure.empty() && c.first) failure += check_first_derivatives(c);
    if (failure.empty() && c.first && c.second) failure += check_second_derivatives(c);
    if (failure.empty()) failure += check_low_precision(c);
  }
  if (failure.empty()) failure += check_cuts(c);
  return failure;
}

std::vector<Mesh> test_meshes() {
  const auto mesh = [](std::initializer_list<int> sizes) {
    std::vector<MeshAxis> axes;
    const char* const names[] = {"a", "b", "c"};
    for (const int size : sizes) axes.push_back({names[axes.size()], size});
    return Mesh::world(axes);
  };
  const int n = process().count;
  std::vector<Mesh> meshes = {mesh({n})};
  if (n == 1) meshes.push_back(mesh({1, 1}));
  if (n == 4) meshes.push_back(mesh({2, 2}));
  if (n == 6) meshes.push_back(mesh({2, 3}));
  if (n == 8) {
    meshes.push_back(mesh({2, 4}));
    meshes.push_back(mesh({2, 2, 2}));
  }
  return meshes;
}

Layout layout_of(const Mesh& mesh,
                 const Shape& shape,
                 const std::vector<int>& dims,
                 const DrawBounds& bounds) {
  std::vector<DimSplit> splits(static_cast<std::size_t>(shape.size()));
  AxisMask partial = 0;
  for (std::size_t axis = 0; axis < dims.size(); ++axis) {
    if (dims[axis] == kAxisPending) {
      partial |= AxisMask{1} << axis;
    } else if (dims[axis] != kAxisReplicates) {
      splits[static_cast<std::size_t>(dims[axis])].axes.push_back(static_cast<int>(axis));
    }
  }
  for (int d = 0; d < shape.size(); ++d) {
    DimSplit& split = splits[static_cast<std::size_t>(d)];
    if (split.axes.empty()) continue;
    int parts = 1;
    for (const int axis : split.axes) parts *= mesh.axis_size(axis);
    split.bounds = bounds(d, split.axes, parts);
  }
  return Layout::make(mesh, shape, std::move(splits), partial);
}

Layout draw_layout(
    const Mesh& mesh, const Shape& shape, const std::vector<int>& dims, int variant, Rng& rng) {
  return layout_of(mesh, shape, dims, [&](int d, const std::vector<int>&, int parts) {
    if (variant == 0) return balanced_bounds(shape[d], parts);
    Bounds bounds = {0, shape[d]};
    for (int p = 1; p < parts; ++p) bounds.push_back(rng.integer(0, shape[d]));
    std::sort(bounds.begin(), bounds.end());
    return bounds;
  });
}

Layout draw_layout(const Mesh& mesh, const Shape& shape, Rng& rng) {
  std::vector<int> dims;
  for (int a = 0; a < mesh.axis_count(); ++a) {
    dims.push_back(static_cast<int>(rng.integer(-1, shape.size() - 1)));
  }
  return draw_layout(mesh, shape, dims, static_cast<int>(rng.integer(0, 1)), rng);
}

std::uint64_t run_seed() {
  static const std::uint64_t seed = [] {
    const char* text = std::getenv("TESSERA_TEST_SEED");
    const std::uint64_t mine = text ? std::strtoull(text, nullptr, 10) : std::random_device()();
    return from_process_0(mine);
  }();
  return seed;
}

int draw_count(int ci) {
  const char* text = std::getenv("TESSERA_TEST_DRAWS");
  const int draws = text ? std::atoi(text) : ci;
  return process().count > 4 ? (draws + 3) / 4 : draws;
}

void random_cases(int draws, const std::function<std::string(Rng& rng)>& check) {
  Rng seeds(run_seed());
  if (process().rank == 0)
    std::cout << "TESSERA_TEST_SEED=" << run_seed() << " (" << draws << " draws)" << std::endl;
  for (int draw = 0; draw < draws; ++draw) {
    Rng rng = seeds.fork();
    const std::string failure = check(rng);
    if (!failure.empty()) {
      report(str("draw ", draw, " of TESSERA_TEST_SEED=", run_seed(), ":\n", failure));
      return;
    }
  }
  SUCCEED();
}

Traffic traffic_of(const std::function<void()>& f) {
  const parallel::CommCounters before = parallel::comm_stats().total();
  f();
  const parallel::CommCounters after = parallel::comm_stats().total();
  std::int64_t sent[2] = {after.bytes - before.bytes, after.messages - before.messages};
  parallel::all_reduce(parallel::Group::world(), sent, 2, DType::kInt64, ReduceOp::kSum,
                       {"test", {}, {}})
      .wait();
  return {sent[0], sent[1]};
}

void expect_traffic(std::int64_t bytes, std::int64_t messages, const std::function<void()>& f) {
  const Traffic sent = traffic_of(f);
  CHECK(sent.bytes == bytes);
  CHECK(sent.messages == messages);
}

void report(const std::string& failure) {
  if (!failure.empty())
    FAIL_CHECK(failure);
  else
    SUCCEED();
}

}  // namespace tessera::test
