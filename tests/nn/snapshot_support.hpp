#pragma once

// Small snapshots whose values follow from step, tensor and index, written by ranks that are
// threads.

#include <catch2/catch.hpp>
#include <tessera/nn/io/snapshots.hpp>

#include "io_support.hpp"

namespace tessera::test {

/// Options that keep warnings in `lines`.
inline io::SnapshotOptions snapshot_options(const std::string& directory,
                                            std::vector<std::string>* lines = nullptr) {
  io::SnapshotOptions options = {.directory = directory, .keep = 2};
  options.warn = [lines](const std::string& line) {
    if (lines != nullptr) lines->push_back(line);
  };
  return options;
}

/// Tensors of one rank: `rows` is split over the ranks, `one` is of the last rank, `none` is empty.
class SmallState {
 public:
  SmallState(int rank, int size) {
    const Bounds bounds = balanced_bounds(kRows, size);
    io::ShardedTensor rows;
    rows.name = "rows";
    rows.dtype = DType::kFloat64;
    rows.shape = {kRows, 3};
    for (int r = 0; r < size; ++r) {
      const Box box({bounds[static_cast<std::size_t>(r)], 0},
                    {bounds[static_cast<std::size_t>(r) + 1], 3});
      if (!box.empty()) rows.parts.push_back({.rank = r, .box = box});
      if (r == rank) mine_ = box;
    }
    io::ShardedTensor one;
    one.name = "one";
    one.dtype = DType::kInt64;
    one.parts.push_back({.rank = size - 1, .box = Box()});
    io::ShardedTensor none;
    none.name = "none";
    none.shape = {0, 2};
    tensors_ = {rows, one, none};
    rows_.resize(static_cast<std::size_t>(mine_.volume()));
  }
  void set(std::int64_t step) {
    std::size_t at = 0;
    for (std::int64_t i = mine_.lo[0]; i < mine_.hi[0]; ++i)
      for (std::int64_t j = 0; j < 3; ++j) rows_[at++] = value(step, i, j);
    one_ = 7 * step;
  }
  void save(io::Snapshots& snapshots, std::int64_t step) {
    set(step);
    snapshots.save(step, tensors_, views(), {{"step", std::to_string(step)}});
    set(-1);  // what was saved is a copy
  }

  /// The step of what loads; 0: nothing. Fails when its values are not of one step.
  static std::int64_t load(io::Snapshots& snapshots) {
    std::int64_t step = 0;
    std::vector<double> rows(kRows * 3);
    std::int64_t one = 0;
    const bool found = snapshots.load(
        [&](const io::ShardReader& reader) { step = std::stoll(reader.metadata().at("step")); },
        [&](const io::ShardReader& reader) {
          reader.read({{"rows", Box::whole({kRows, 3}),
                        View::dense(rows.data(), DType::kFloat64, {kRows, 3})},
                       {"one", Box(), View::dense(&one, DType::kInt64, {})}});
        });
    if (!found) return 0;
    int wrong = one == 7 * step ? 0 : 1;
    for (std::int64_t i = 0; i < kRows; ++i)
      for (std::int64_t j = 0; j < 3; ++j)
        wrong += rows[static_cast<std::size_t>(3 * i + j)] != value(step, i, j);
    if (wrong != 0) throw std::runtime_error(str("step ", step, " loads with wrong values"));
    return step;
  }

 private:
  static constexpr std::int64_t kRows = 5;
  static double value(std::int64_t step, std::int64_t i, std::int64_t j) {
    return static_cast<double>(1000 * step + 10 * i + j) + 0.125;
  }
  std::vector<View> views() {
    return {View::dense(rows_.data(), DType::kFloat64, mine_.shape()),
            View::dense(&one_, DType::kInt64, {}), View::dense(nullptr, DType::kFloat32, {0, 2})};
  }

  std::vector<io::ShardedTensor> tensors_;
  Box mine_;
  std::vector<double> rows_;
  std::int64_t one_ = 0;
};

}  // namespace tessera::test
