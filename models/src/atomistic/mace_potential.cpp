#include <algorithm>
#include <tessera/models/atomistic/mace_potential.hpp>

namespace tessera::atomistic {

namespace {

/// Dense memory, as the readers of an Evaluation expect.
Tensor dense(const Tensor& x) { return Tensor::from_local(x.local(), x.layout()); }

}  // namespace

bool MacePotential::knows(std::int32_t species) const {
  const auto& elements = model_->options().elements;
  return std::find(elements.begin(), elements.end(), species) != elements.end();
}

Evaluation MacePotential::evaluate(const nn::Graph& graph) const {
  check_species(*this, graph);
  const models::MaceResult r = model_->compute(graph, {.forces = true, .stress = true});
  return {dense(r.node_energy), dense(r.forces), dense(r.energy), dense(r.virials)};
}

}  // namespace tessera::atomistic
