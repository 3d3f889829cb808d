#include "tiles.hpp"

#include <algorithm>

namespace tessera::app {
namespace {

struct Piece {
  Interval window;
  Interval part;
};

std::vector<Piece> pieces_of(std::int64_t n, std::int64_t side, bool periodic) {
  if (side >= n) return {{{0, n}, {0, n}}};
  const std::int64_t margin = side / 8;
  const std::int64_t inner = std::max<std::int64_t>(side - 2 * margin, 1);
  const std::int64_t count = (n + inner - 1) / inner;
  std::vector<Piece> pieces;
  for (std::int64_t k = 0; k < count; ++k) {
    const Interval part = {k * n / count, (k + 1) * n / count};
    std::int64_t start = part.lo - (side - part.size()) / 2;
    if (!periodic) start = std::clamp<std::int64_t>(start, 0, n - side);
    pieces.push_back({{start, start + side}, part});
  }
  return pieces;
}

}  // namespace

std::vector<Tile> tiles_of(const Shape& domain,
                           const Shape& side,
                           const std::vector<bool>& periodic) {
  std::vector<Tile> tiles = {{}};
  for (int d = 0; d < domain.size(); ++d) {
    std::vector<Tile> longer;
    for (const Tile& tile : tiles) {
      for (const Piece& piece :
           pieces_of(domain[d], side[d], periodic[static_cast<std::size_t>(d)])) {
        Tile t = tile;
        t.window.lo.push_back(piece.window.lo);
        t.window.hi.push_back(piece.window.hi);
        t.part.lo.push_back(piece.part.lo);
        t.part.hi.push_back(piece.part.hi);
        longer.push_back(t);
      }
    }
    tiles = std::move(longer);
  }
  return tiles;
}

}  // namespace tessera::app
