#pragma once

#include <functional>
#include <vector>

#include "task.hpp"

namespace tessera::app {

/// A task on made-up data: smooth waves of made-up phases, the same on every mesh.
class Imitation : public Task {
 public:
  /// Layouts of input and target on a mesh, for a network of this stride.
  struct Layouts {
    Layout input;
    Layout target;
  };
  using Place = std::function<Layouts(const Mesh& mesh, std::int64_t stride)>;

  /// `spacing`: points of the target from one element of the input to the next.
  Imitation(const RunSettings& settings,
            Transform transform,
            Place place,
            std::int64_t spacing = 1);

  Transform transform() const override { return transform_; }
  void place(const Mesh& mesh, std::int64_t stride) override { at_ = place_(mesh, stride); }
  Batch batch(std::int64_t first) const override;
  std::vector<EdgeRule> edges() const override { return transform_.edges; }
  io::Metadata numbers() const override { return {}; }

 private:
  Tensor waves(const Layout& layout, std::int64_t step, double spacing) const;

  std::int64_t samples_;
  DType dtype_;
  Transform transform_;
  Place place_;
  std::int64_t spacing_;
  Layouts at_;
};

/// Edges of a made-up domain: its dimensions are called 0, 1, ... Throws UsageError when a periodic
/// one is none of them.
std::vector<EdgeRule> imitated_edges(const std::vector<std::string>& periodic, std::size_t dims);

}  // namespace tessera::app
