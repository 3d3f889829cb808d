#include <tessera/nn/shard.hpp>

namespace tessera::nn {
namespace {

AxisMask mask_of(const Mesh& mesh, const std::vector<std::string>& names) {
  if (names.empty()) return mesh.all_axes();
  AxisMask mask = 0;
  for (const std::string& name : names) mask |= AxisMask{1} << mesh.axis(name);
  return mask;
}

/// `use` with one more dimension split over those of `axes` that split none.
Layout split_further(const Layout& use, AxisMask axes) {
  const Mesh& mesh = use.mesh();
  std::vector<int> free;
  for (int a = 0; a < mesh.axis_count(); ++a)
    if ((axes & ~use.split_axes()) >> a & 1u && mesh.axis_size(a) > 1) free.push_back(a);
  if (free.empty()) return use;
  int parts = 1;
  for (const int a : free) parts *= mesh.axis_size(a);
  int best = -1;
  double smallest = 0.0;
  for (int d = 0; d < use.dims(); ++d) {
    const std::int64_t n = use.shape()[d];
    if (use.is_split(d) || n == 0) continue;
    // The share of the whole that the largest part is.
    const double share = static_cast<double>((n + parts - 1) / parts) / static_cast<double>(n);
    if (best < 0 || share < smallest) {
      best = d;
      smallest = share;
    }
  }
  // A vector that is split in use stays as it is; a scalar has nothing to split.
  if (best < 0) return use;
  return use.with_dim(best, use.shape()[best], {free, balanced_bounds(use.shape()[best], parts)});
}

}  // namespace

void shard(Module& model, const ShardOptions& options) {
  if (options.stage < 1 || options.stage > 3) {
    throw UsageError(str("shard: stage ", options.stage,
                         " is unknown. Use 1 (optimiser state), 2 (and gradients) or 3 (and "
                         "parameters)."));
  }
  for (Parameter& p : model.parameters()) {
    const Layout use = p.use();
    const Layout shares = split_further(use, mask_of(p.mesh(), options.axes));
    if (!p.requires_grad() || p.numel() < options.min_elements || shares == use) continue;
    if (options.stage == 1) {
      p.place(use, use);
      p.place_optimizer(shares);
    } else {
      p.place(shares, use);
      p.keep_use(options.stage == 2);
    }
  }
}

}  // namespace tessera::nn
