#pragma once

#include <memory>
#include <tessera/nn/inspect/workload.hpp>
#include <vector>

#include "potential_settings.hpp"
#include "workload.hpp"

namespace tessera::app {

/// Atoms of a cell of the made-up crystal.
inline constexpr std::int64_t kAtomsPerCell = 9;

/// A training as train_atoms() runs it, on made-up structures: quartz of `size` cells along each
/// lattice vector (1 where fewer are given), atoms out of place, `batch_size` of them. Neighbours
/// are listed once, before the first step. Throws UsageError for sizes and settings that do not
/// fit. `settings` must live on.
nn::MakeWorkload atoms_workload(const AtomsSettings& settings,
                                const std::vector<std::int64_t>& size,
                                Update update);

}  // namespace tessera::app
