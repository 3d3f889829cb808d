#pragma once

#include <memory>
#include <string>
#include <tessera/models/mace.hpp>
#include <tessera/nn/atoms/objective.hpp>
#include <tessera/nn/graph/batch.hpp>
#include <tessera/nn/optim.hpp>
#include <vector>

#include "potential_settings.hpp"

namespace tessera::app {

struct TrainOptions;

/// Trains a potential on structures and fills the run's directory. Returns the exit code, as
/// train().
int train_atoms(AtomsSettings& settings, const TrainOptions& options);

/// The optimiser of these settings.
optim::AdamWOptions optimizer_options(const AtomsSettings& settings);

/// The mesh for structures: axis `data` deals them out, all others cut each in space. Empty: all
/// processes along `data`.
Mesh parse_atoms_mesh(const std::string& text);

/// How structures become graphs on this mesh.
nn::BatchOptions batch_options(const Mesh& mesh, double cutoff);

/// What a model says of structures, and how far it is from their labels.
struct AtomsScore {
  nn::AtomErrors errors;
  double loss = 0.0;  ///< mean over batches; 0 without `loss`
  /// The structures with predictions as MACE_energy, MACE_forces, MACE_stress; rank 0 only, and
  /// only where asked for.
  std::vector<nn::Structure> predicted;
};
AtomsScore score_atoms(const models::Mace& model,
                       const std::vector<nn::Structure>& structures,
                       const Mesh& mesh,
                       std::int64_t batch_size,
                       const nn::AtomLossOptions* loss,
                       bool keep);

/// Throws DataError with the line of the first structure with an atom of another element.
void check_elements(const std::vector<nn::Structure>& structures,
                    const std::string& file,
                    const std::vector<std::int64_t>& elements);

/// One line per set: errors of energies in meV/atom and forces in meV/A, of stress in
/// meV/A^3; - where there are no labels.
struct NamedScore {
  std::string name;
  nn::AtomErrors errors;
};
void print_errors(const std::vector<NamedScore>& scores);

/// How `tessera evaluate` treats a run of `train mace`.
struct EvaluateAtomsOptions {
  std::string mesh;
  std::string run;      ///< directory, or the model's file
  std::string configs;  ///< extended XYZ; empty: the test file of the run, else the validation file
  /// Extended XYZ with predictions; empty: RUN/predictions.xyz, beside a file FILE.predictions.xyz.
  std::string output;
  std::int64_t batch_size = 10;
};

/// A learned potential: that of the run in a directory, or a file.
struct PotentialFile {
  PotentialFile() = default;
  /// Throws IoError, and DataError when it is no potential.
  explicit PotentialFile(const std::string& run);

  std::string path;
  models::MaceOptions options;
  DType dtype = DType::kFloat64;  ///< of its weights
};

/// The model's file of a run, given as its directory or as that file itself.
std::string model_file(const std::string& run);
/// Whether the model is a potential.
bool is_atoms_run(const std::string& run);
int evaluate_atoms(const EvaluateAtomsOptions& options);

}  // namespace tessera::app
