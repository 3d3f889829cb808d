// ranks: 1 2
// PyTorch's numbers for the same weights: tests/data/vit_reference.py writes them.
#include <cstring>
#include <tessera/models/vit.hpp>
#include <tessera/nn/io/safetensors.hpp>

#include "model_support.hpp"

namespace tessera::test {
namespace {

using models::ViT;
using models::ViTOptions;

/// Output and gradients of the model with the weights of the file against those of the file.
void check_reference(const std::string& part,
                     const ViTOptions& options,
                     DType dtype,
                     double tolerance) {
  const io::SafetensorsReader file(TESSERA_SOURCE_DIR "/tests/data/vit_reference.safetensors");
  const auto dense = [&](const std::string& name) {
    const Layout whole = Layout::replicated(Mesh::self(), file.entry(part + name).shape);
    return to_dense(file.read(part + name, whole));
  };
  const Mesh mesh = Mesh::world({{"h", process().count}});
  ViT model(options, mesh, dtype);
  for (const auto& [path, p] : model.named_parameters()) {
    const Tensor weights = file.read(part + "weights/" + path, p.rest(), dtype);
    const View to = p.value().mutable_local();
    std::memcpy(to.data, weights.local().data, static_cast<std::size_t>(weights.local_bytes()));
  }
  const DenseArray x = dense("x");
  const Tensor y = model(to_tensor(x, Placement(mesh).domain(0, "h").resolve(x.shape), dtype));
  CHECK(compare(part + "y", y, dense("y"), tolerance) == "");
  backward(sum(y * to_tensor(dense("dy"), y.layout().dual(), dtype)));
  for (const auto& [path, p] : model.named_parameters()) {
    CHECK(compare(part + path, gradient(p.value()), dense("gradients/" + path), tolerance, 0.1) ==
          "");
  }
}

}  // namespace

TEST_CASE("vit computes what PyTorch does") {
  ViTOptions fields;
  fields.in_channels = 2;
  fields.out_channels = 3;
  fields.patch = {3, 4};
  fields.channels = 12;
  fields.depth = 2;
  fields.heads = 3;
  fields.mlp_ratio = 2;
  fields.positions = ViTOptions::Positions::kLearned;
  fields.grid = {4, 5};

  ViTOptions classes;
  classes.classes = 5;
  classes.patch = {2};
  classes.channels = 16;
  classes.depth = 2;
  classes.heads = 4;
  classes.key_heads = 2;
  classes.mlp_ratio = 2;
  classes.qk_norm = true;
  classes.gated_mlp = true;

  for (const auto& [dtype, tolerance] :
       {std::pair(DType::kFloat64, 1e-6), std::pair(DType::kFloat32, 1e-5)}) {
    check_reference("fields/", fields, dtype, tolerance);
    check_reference("classes/", classes, dtype, tolerance);
  }
}

}  // namespace tessera::test
