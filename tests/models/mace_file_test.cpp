// ranks: 1 2
// A model that was written is the same when it is read.
#include <filesystem>
#include <tessera/models/mace_file.hpp>
#include <tessera/nn/io/data_error.hpp>

#include "mace_support.hpp"

namespace tessera::test {

TEST_CASE("a mace that is written and read gives the same bits") {
  MaceOptions o = golden_options();
  o.density = true;
  o.agnesi = true;
  o.first_block = MaceOptions::FirstBlock::kAgnostic;
  o.couplings = kernels::CouplingBasis::kReduced;
  o.shift = 0.1 + 0.2;
  o.seed = 1234567890123456789ull;
  const Mesh mesh = Mesh::world({{"x", process().count}});
  Mace model(o, mesh, DType::kFloat64);
  const std::string path =
      (std::filesystem::temp_directory_path() /
       ("tessera_mace_" + std::to_string(from_process_0(run_seed())) + ".safetensors"))
          .string();
  models::save_mace(path, model, {{"note", "test"}});
  Mace again = models::load_mace(path, mesh);
  CHECK(again.options().seed == o.seed);
  CHECK(again.options().first_block == o.first_block);
  const nn::Graph graph = nn::batch_graph(std::vector<nn::Structure>{quartz()}, mesh,
                                          {.cutoff = o.r_max, .domain_axes = {"x"}});
  const auto energy = [&](const Mace& m) { return m.compute(graph).energy.at({0}); };
  CHECK(energy(again) == energy(model));
  const Mace narrow = models::load_mace(path, mesh, DType::kFloat32);
  CHECK(energy(narrow) == Approx(energy(model)).epsilon(1e-5));
  any_process(false);
  if (process().rank == 0) std::filesystem::remove(path);
  CHECK_THROWS_AS(models::read_mace_options("/nonexistent"), IoError);
}

}  // namespace tessera::test
