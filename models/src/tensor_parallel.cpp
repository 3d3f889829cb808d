#include <map>
#include <tessera/models/tensor_parallel.hpp>
#include <tessera/models/unet.hpp>

namespace tessera::models {

nn::PlacementRules tensor_parallel(nn::Module& model, const std::string& axis) {
  nn::PlacementRules rules = nn::tensor_parallel(model, axis);
  std::map<std::string, nn::Module*> modules;
  for (const auto& [path, module] : model.named_modules()) modules.emplace(path, module);
  for (const auto& [path, module] : modules) {
    if (dynamic_cast<const ResidualBlock*>(module) == nullptr) continue;
    const std::string in = path.empty() ? "" : path + ".";
    const auto& conv1 = dynamic_cast<const nn::Conv&>(*modules.at(in + "conv1"));
    const auto& conv2 = dynamic_cast<const nn::Conv&>(*modules.at(in + "conv2"));
    std::int64_t multiple = 1;
    const auto norm = modules.find(in + "norm2");
    if (norm != modules.end()) {
      const auto& o = dynamic_cast<const nn::GroupNorm&>(*norm->second).options();
      multiple = o.channels / o.groups;
    }
    const nn::ParameterPlacement rows = nn::split_rows(conv1.weight.mesh(), axis, multiple);
    rules.emplace_back(in + "conv1.weight", rows);
    if (conv1.bias.defined()) rules.emplace_back(in + "conv1.bias", rows);
    if (norm != modules.end()) rules.emplace_back(in + "norm2.*", rows);
    rules.emplace_back(in + "conv2.weight", nn::split_columns(conv2.weight, axis, multiple));
  }
  if (rules.empty()) {
    throw UsageError(
        "tensor_parallel: the model has no attention, Mlp or residual block. Write rules for "
        "nn::place().");
  }
  return rules;
}

}  // namespace tessera::models
