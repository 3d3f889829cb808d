#pragma once

#include <tessera/nn/tensor_parallel.hpp>

namespace tessera::models {

/// Rules for nn::place() that split a model over a mesh axis, in use: attention by heads, Mlps by
/// hidden channels (nn::tensor_parallel()), residual blocks of a UNet by the channels between their
/// convolutions, groups of the norm between kept together. The domain may be split over the same
/// axis, too. Throws UsageError where the model has none of these, LayoutError when its mesh lacks
/// the axis.
///
/// ```cpp
/// nn::place(vit, models::tensor_parallel(vit, "tensor"));
/// ```
nn::PlacementRules tensor_parallel(nn::Module& model, const std::string& axis);

}  // namespace tessera::models
