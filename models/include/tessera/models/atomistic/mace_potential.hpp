#pragma once

#include <memory>
#include <tessera/models/atomistic/potential.hpp>
#include <tessera/models/mace.hpp>

namespace tessera::atomistic {

/// A MACE model as a potential. `evaluate` throws DataError for elements that it does not know.
class MacePotential : public Potential {
 public:
  explicit MacePotential(std::shared_ptr<const models::Mace> model) : model_(std::move(model)) {}
  std::string name() const override { return "mace"; }
  double cutoff() const override { return model_->options().r_max; }
  bool knows(std::int32_t species) const override;
  Evaluation evaluate(const nn::Graph& graph) const override;

 private:
  std::shared_ptr<const models::Mace> model_;
};

}  // namespace tessera::atomistic
