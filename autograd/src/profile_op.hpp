#pragma once

#include <tessera/autograd/op.hpp>
#include <tessera/core/profile.hpp>

namespace tessera {

/// Books a call that has just ended with the profile that records.
void profile_op(const OpDef& op,
                Profile::Clock::time_point start,
                std::span<const Tensor> inputs,
                const ArgsRef& args,
                const Outputs& outputs);

}  // namespace tessera
