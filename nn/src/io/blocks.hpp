#pragma once

#include <cstdint>
#include <functional>
#include <tessera/core/box.hpp>

namespace tessera::io {

/// Cuts `box` into boxes of at most `volume` points (at least one), in row-major order.
void for_each_block(const Box& box, std::int64_t volume, const std::function<void(const Box&)>& f);

/// Cuts `box` of an array that is stored in chunks into boxes of whole chunks, as many as `volume`
/// points hold (at least one).
void for_each_chunk_block(const Box& box,
                          const Shape& chunk,
                          std::int64_t volume,
                          const std::function<void(const Box&)>& f);

/// The chunks that a box that is not empty touches, by their indices.
Box chunks_of(const Box& box, const Shape& chunk);

/// The box of the array with its dimensions in the opposite order.
Box reversed(const Box& box);

}  // namespace tessera::io
