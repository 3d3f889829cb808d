#pragma once

#include <tessera/autograd/op.hpp>

namespace tessera {

/// Whether TESSERA_VERBOSE is set: rank 0 then prints each op with the layouts and the
/// communication inserted.
bool verbose();
void verbose_redistribution(const char* op, const Layout& from, const Layout& to);
void verbose_op(const OpDef& op,
                std::span<const Tensor> inputs,
                const Outputs& outputs,
                std::int64_t halo_bytes,
                int messages);

}  // namespace tessera
