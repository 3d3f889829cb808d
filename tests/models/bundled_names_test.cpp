// ranks: 1 2 3
// Weights under the names of diffusers and timm, with PyTorch's outputs:
// tests/data/named_weights.py.
#include <filesystem>
#include <tessera/models/unet.hpp>
#include <tessera/models/vit.hpp>
#include <tessera/models/weight_names.hpp>
#include <tessera/nn/io/safetensors.hpp>

#include "model_support.hpp"

namespace tessera::test {
namespace {

const std::string kData = TESSERA_SOURCE_DIR "/tests/data/";

/// [N, C, k...] as [N, k..., C].
DenseArray channels_last(const io::SafetensorsReader& file, const std::string& name) {
  const Shape& shape = file.entry(name).shape;
  const DenseArray from =
      to_dense(file.read(name, Layout::replicated(Mesh::self(), shape), DType::kFloat64));
  if (shape.size() < 3) return from;
  DenseArray to(Shape{shape[0], shape[2], shape[3], shape[1]});
  std::size_t at = 0;
  for (std::int64_t n = 0; n < shape[0]; ++n)
    for (std::int64_t y = 0; y < shape[2]; ++y)
      for (std::int64_t x = 0; x < shape[3]; ++x)
        for (std::int64_t c = 0; c < shape[1]; ++c)
          to.values[at++] = from.values[static_cast<std::size_t>(
              ((n * shape[1] + c) * shape[2] + y) * shape[3] + x)];
  return to;
}

/// Loads, compares the output with PyTorch's, writes, and compares every value with what was read.
template <class Model>
void check(Model& model, const Mesh& mesh, const std::string& list) {
  const std::string path = kData + list + ".safetensors";
  nn::WeightNames names = models::weight_names(list);
  CHECK_THROWS_AS(nn::import_weights(path, model, names), DataError);  // test.x has no place
  names.ignored.push_back("test.*");
  nn::import_weights(path, model, names);
  const io::SafetensorsReader file(path);
  const DenseArray x = channels_last(file, "test.x");
  const Tensor y =
      model(to_tensor(x, Placement(mesh).domain(0, "h").resolve(x.shape), DType::kFloat64));
  CHECK(compare(list, y, channels_last(file, "test.y"), 1e-6) == "");

  const std::string copy =
      (std::filesystem::temp_directory_path() /
       str("tessera-names-", from_process_0(static_cast<std::uint64_t>(getpid()))))
          .string();
  nn::export_weights(copy, model, names);
  const io::SafetensorsReader written(copy);
  CHECK(written.entries().size() == file.entries().size() - 2);
  for (const auto& entry : written.entries()) {
    INFO(entry.name);
    CHECK(entry.shape == file.entry(entry.name).shape);
    const Layout whole = Layout::replicated(Mesh::self(), entry.shape);
    CHECK(to_dense(written.read(entry.name, whole, DType::kFloat64)).values ==
          to_dense(file.read(entry.name, whole, DType::kFloat64)).values);
  }
  any_process(false);
  if (mesh.rank() == 0) std::filesystem::remove(copy);
}

}  // namespace

TEST_CASE("a U-Net under the names of diffusers, stored as F16") {
  const Mesh mesh = Mesh::world({{"h", process().count}});
  models::UNet model({.in_channels = 2,
                      .out_channels = 3,
                      .base = 2,
                      .multipliers = {2, 4, 3},
                      .blocks = 2,
                      .norm_groups = 2},
                     mesh, DType::kFloat64);
  const Placement split(mesh);
  nn::place(model, {{"up.*.transposed.weight", {.rest = split.shard(0, {"h"})}},
                    {"down.0.blocks.*.conv1.weight", {.rest = split.shard(3, {"h"})}}});
  check(model, mesh, "unet_diffusers");
  // Half precision into bf16, which has fewer digits.
  const io::SafetensorsReader file(kData + "unet_diffusers.safetensors");
  const Layout whole = Layout::replicated(Mesh::self(), {4});
  const Tensor exact = file.read("conv_in.bias", whole);
  const Tensor rounded = file.read("conv_in.bias", whole, DType::kBFloat16);
  CHECK(file.entry("conv_in.bias").dtype == DType::kFloat32);
  for (std::int64_t i = 0; i < 4; ++i) {
    CHECK(exact.at({i}) != 0.0);
    CHECK(rounded.at({i}) ==
          static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(exact.at({i}))))));
  }
}

TEST_CASE("a vision transformer under the names of timm") {
  const Mesh mesh = Mesh::world({{"h", process().count}});
  models::ViT model({.in_channels = 3,
                     .classes = 5,
                     .patch = {2, 4},
                     .channels = 12,
                     .depth = 2,
                     .heads = 3,
                     .mlp_ratio = 2,
                     .positions = models::ViTOptions::Positions::kLearned,
                     .grid = {3, 4}},
                    mesh, DType::kFloat64);
  nn::place(model, {{"positions.weight", {.rest = Placement(mesh).shard(1, {"h"})}},
                    {"blocks.*.attn.key.weight", {.rest = Placement(mesh).shard(0, {"h"})}}});
  check(model, mesh, "vit_timm");
}

TEST_CASE("bundled lists of names") {
  CHECK(models::bundled_weight_names() == std::vector<std::string>{"unet_diffusers", "vit_timm"});
  CHECK(models::weight_names("").rules.empty());
  CHECK_THROWS_WITH(models::weight_names("vit_tim"), Catch::Contains("vit_timm"));
  CHECK_THROWS_AS(models::weight_names("none.json"), IoError);
}

}  // namespace tessera::test
