#include "use.hpp"

#include <tessera/nn/checkpoint.hpp>

#include "mesh_option.hpp"
#include "potential.hpp"
#include "trained.hpp"

namespace tessera::app {

int evaluate(const EvaluateOptions& options) {
  const Mesh mesh = parse_mesh(options.mesh);
  bool potential = false;
  nn::collective(mesh).together([&] { potential = is_atoms_run(options.run); });
  if (potential) {
    return evaluate_atoms({.mesh = options.mesh,
                           .run = options.run,
                           .configs = options.configs,
                           .output = options.output});
  }
  const Trained trained = load_trained(RunFiles{options.run}.weights(), mesh);
  return trained.settings->data->evaluate(options, trained, mesh);
}

int predict(const PredictOptions& options) {
  const Mesh mesh = parse_mesh(options.mesh);
  const Trained trained = load_trained(RunFiles{options.run}.weights(), mesh);
  return trained.settings->data->predict(options, trained, mesh);
}

}  // namespace tessera::app
