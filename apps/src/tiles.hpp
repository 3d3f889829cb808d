#pragma once

#include <functional>
#include <tessera/core/box.hpp>
#include <vector>

namespace tessera::app {

/// A window of a field in which a network works, and the part of its result that is kept.
struct Tile {
  Box window;  ///< may reach beyond the ends of periodic dimensions
  Box part;    ///< inside the window and inside the field
};

/// Tiles of `side` points per dimension (the whole dimension where that is shorter) whose parts
/// make up the field `domain`. Each part keeps away from the edges of its window, by at least an
/// eighth of the side, but for edges that are those of the field.
std::vector<Tile> tiles_of(const Shape& domain,
                           const Shape& side,
                           const std::vector<bool>& periodic);

}  // namespace tessera::app
