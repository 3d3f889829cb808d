#pragma once

#include <optional>
#include <tessera/autograd/ops/ghost_rows.hpp>
#include <tessera/parallel/communicator.hpp>

// Exchanges of ghosts that have started and are not awaited yet, by the memory of the tensor that
// has the ghosts.

namespace tessera {

struct GhostExchange {
  Ref<Buffer> rows;    // of the tensor with ghosts
  std::int64_t own;    // its rows before the ghosts
  Ref<Buffer> arrive;  // of a sum: what others add to own rows
  parallel::Request request;
};

/// Keeps an exchange until it is taken.
void put_in_flight(GhostExchange exchange);
/// The exchange of this tensor's ghosts, which is then no longer kept; nothing where there is none.
std::optional<GhostExchange> take_from_flight(const Tensor& rows);
/// Waits for the exchange of this tensor's ghosts, if there is one.
void arrive(const Tensor& rows);

/// The own rows of an input whose ghosts may not be there yet, by its memory; -1: all are there.
std::int64_t rows_ahead_of_ghosts(const void* data);
/// Waits for them.
void arrive(const void* data);

}  // namespace tessera
