#include <tessera/models/mace_file.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/io/data_error.hpp>
#include <tessera/nn/io/settings.hpp>

namespace tessera::models {
namespace {

constexpr const char* kKind = "tessera.model";
constexpr const char* kName = "mace";
constexpr const char* kConfig = "mace.options";

/// The options as settings: what the file says.
struct Written {
  MaceOptions options;
  std::string first_block;
  std::string couplings;

  explicit Written(const MaceOptions& o = {}) : options(o) {
    first_block = o.first_block == MaceOptions::FirstBlock::kAgnostic ? "agnostic" : "residual";
    couplings = o.couplings == kernels::CouplingBasis::kReduced     ? "reduced"
                : o.couplings == kernels::CouplingBasis::kTabulated ? "tabulated"
                                                                    : "full";
  }

  void declare(io::Settings& s) {
    MaceOptions& o = options;
    s.add("elements", o.elements, "Atomic numbers.");
    s.add("r_max", o.r_max, "Cutoff, A.");
    s.add("channels", o.channels, "Channels of each l.");
    s.add("max_L", o.max_L, "Largest l of features.");
    s.add("max_ell", o.max_ell, "Largest l of messages.");
    s.add("correlation", o.correlation, "Order of products.");
    s.add("layers", o.layers, "Interactions.");
    s.add("radial_basis", o.radial_basis, "Bessel functions.");
    s.add("cutoff_power", o.cutoff_power, "Power of the envelope.");
    s.add("radial_mlp", o.radial_mlp, "Hidden units of the radial networks.");
    s.add("readout", o.readout, "Hidden units of the last readout.");
    s.add("first_block", first_block, "First interaction.", {.choices = {"residual", "agnostic"}});
    s.add("density", o.density, "Messages are divided by a learned density.");
    s.add("agnesi", o.agnesi, "Distances relative to covalent radii.");
    s.add("pair_repulsion", o.pair_repulsion, "Repulsion of nuclei.");
    s.add("couplings", couplings, "Basis of the products.",
          {.choices = {"full", "tabulated", "reduced"}});
    s.add("e0", o.e0, "Energies of isolated atoms, eV.");
    s.add("scale", o.scale, "Scale of interaction energies, eV.");
    s.add("shift", o.shift, "Shift of the energy of each atom, eV.");
    s.add("avg_num_neighbors", o.avg_num_neighbors, "Messages are divided by it.");
    s.add("seed", o.seed, "Key of the first weights.");
    s.add("radial_intervals", o.radial_intervals, "Intervals of the radial tables; 0: none.");
  }

  MaceOptions read() const {
    MaceOptions o = options;
    o.first_block = first_block == "agnostic" ? MaceOptions::FirstBlock::kAgnostic
                                              : MaceOptions::FirstBlock::kResidual;
    o.couplings = couplings == "reduced"     ? kernels::CouplingBasis::kReduced
                  : couplings == "tabulated" ? kernels::CouplingBasis::kTabulated
                                             : kernels::CouplingBasis::kFull;
    return o;
  }
};

}  // namespace

void save_mace(const std::string& path, Mace& model, const io::Metadata& metadata) {
  Written written(model.options());
  io::Settings settings;
  written.declare(settings);
  io::Metadata all = {{kKind, kName}, {kConfig, settings.toml()}};
  all.insert(metadata.begin(), metadata.end());
  nn::save_weights(path, model, all);
}

MaceOptions read_mace_options(const std::string& path) {
  const io::SafetensorsReader file(path);
  const io::Metadata& metadata = file.metadata();
  const auto kind = metadata.find(kKind);
  const auto config = metadata.find(kConfig);
  if (kind == metadata.end() || kind->second != kName || config == metadata.end()) {
    throw DataError(
        str("mace: ", path,
            " holds no MACE model (its metadata do not say so). Give the model.safetensors "
            "of a run of `tessera train mace`."));
  }
  Written written;
  io::Settings settings;
  written.declare(settings);
  settings.load_text(config->second, path);
  return written.read();
}

Mace load_mace(const std::string& path, const Mesh& mesh, DType dtype) {
  MaceOptions options;
  nn::collective(mesh).together([&] { options = read_mace_options(path); });
  return load_mace(path, options, mesh, dtype);
}

Mace load_mace(const std::string& path, const MaceOptions& options, const Mesh& mesh, DType dtype) {
  Mace model(options, mesh, dtype);
  nn::load_weights(path, model);
  model.eval();
  return model;
}

}  // namespace tessera::models
