#include "bench_mesh.hpp"

#include <charconv>
#include <functional>
#include <limits>
#include <tessera/core/error.hpp>

namespace tessera::app {

Dims parse_size(const std::string& text) {
  Dims size;
  std::size_t from = 0;
  bool fits = true;
  while (fits && from <= text.size()) {
    const std::size_t end = std::min(text.find_first_of("x,", from), text.size());
    std::int64_t n = 0;
    const char* const last = text.data() + end;
    const auto [stop, error] = std::from_chars(text.data() + from, last, n);
    fits = error == std::errc() && stop == last && n >= 1 && size.size() < 3;
    if (fits) size.push_back(n);
    from = end + 1;
  }
  if (!fits || size.empty()) {
    throw UsageError(str("size: \"", text,
                         "\" is not a domain of 1 to 3 dimensions. Write for example 256x256 or "
                         "64x64x64."));
  }
  return size;
}

std::string size_text(std::span<const std::int64_t> size) {
  std::string text;
  for (const std::int64_t n : size) {
    if (!text.empty()) text += 'x';
    text += std::to_string(n);
  }
  return text;
}

std::vector<MeshAxis> choose_axes(const Dims& size, int ranks) {
  const int dims = size.size();
  Dims parts = Dims::filled(dims, 1);
  Dims best = parts;
  double least = std::numeric_limits<double>::infinity();
  // Largest outer factor first: of equal surfaces the one with whole inner rows is kept.
  const std::function<void(int, int)> choose = [&](int d, int left) {
    if (d + 1 == dims) {
      parts[d] = left;
      double surface = 0.0;
      for (int cut = 0; cut < dims; ++cut) {
        if (parts[cut] == 1) continue;
        double face = parts[cut] == 2 ? 1.0 : 2.0;  // an end has one neighbour
        for (int other = 0; other < dims; ++other) {
          if (other == cut) continue;
          face *= static_cast<double>(size[other]) / static_cast<double>(parts[other]);
        }
        surface += face;
      }
      for (int cut = 0; cut < dims; ++cut)  // an empty part is a rank without work
        if (parts[cut] > size[cut]) surface = 1e300;
      if (surface < least * (1.0 - 1e-12)) {
        least = surface;
        best = parts;
      }
      return;
    }
    for (int n = left; n >= 1; --n) {
      if (left % n != 0) continue;
      parts[d] = n;
      choose(d + 1, left / n);
    }
  };
  choose(0, ranks);
  const char* const names[] = {"d", "h", "w"};
  std::vector<MeshAxis> axes;
  for (int d = 0; d < dims; ++d) axes.push_back({names[3 - dims + d], static_cast<int>(best[d])});
  return axes;
}

}  // namespace tessera::app
