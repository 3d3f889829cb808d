#include <algorithm>
#include <cmath>
#include <tessera/core/tensor.hpp>
#include <tessera/nn/data/grid_field.hpp>
#include <tessera/nn/io/suggest.hpp>

namespace tessera::data {
namespace {

/// Points of a uniform spacing around the whole circle of 360 degrees.
bool goes_around(const std::vector<double>& degrees) {
  const std::size_t n = degrees.size();
  if (n < 3) return false;
  const double spacing = (degrees.back() - degrees.front()) / static_cast<double>(n - 1);
  return std::abs(std::abs(spacing) * static_cast<double>(n) - 360.0) < 0.25 * std::abs(spacing);
}

/// Whether the attribute `modulo` of a coordinate says that points of a uniform spacing close a
/// circle.
bool closes_circle(const io::FieldReader& reader,
                   const std::string& dimension,
                   const std::vector<double>& x) {
  if (x.size() < 2 || !reader.contains(dimension)) return false;
  const auto& attributes = reader.variable(dimension).attributes;
  const auto found = attributes.find("modulo");
  if (found == attributes.end()) return false;
  const auto* length = std::get_if<std::vector<double>>(&found->second);
  if (length == nullptr || length->size() != 1) return false;
  const double spacing = (x.back() - x.front()) / static_cast<double>(x.size() - 1);
  return std::abs(spacing * static_cast<double>(x.size()) - (*length)[0]) <
         0.25 * std::abs(spacing);
}

}  // namespace

GridField::GridField(const GridFieldOptions& options) : reader_(io::open_fields(options.path)) {
  variable_ = &reader_->variable_or_only(options.variable, 2);
  const io::FieldVariable& v = *variable_;
  if (!v.numeric) throw DataError(str(path(), ": variable \"", v.name, "\" holds no numbers."));
  const int all = v.shape.size();
  const int domain = options.domain_dims == 0 ? all : options.domain_dims;
  if (domain < 1 || domain > all)
    throw UsageError(str("data: ", options.domain_dims, " grid dimensions of variable \"", v.name,
                         "\", which has ", all, "."));
  for (int d = 0; d < all - domain; ++d) lead_.push_back(v.shape[d]);
  for (int d = all - domain; d < all; ++d) {
    const std::string& name = v.dims[static_cast<std::size_t>(d)];
    dim_names_.push_back(name);
    std::vector<double> coordinates = reader_->coordinates(name);
    const std::string units =
        coordinate_attribute(static_cast<int>(dim_names_.size()) - 1, "units");
    const bool longitude =
        units.rfind("degree", 0) == 0 && units.find_first_of("Ee", 6) != std::string::npos &&
        units.find('N') == std::string::npos && units.find("north") == std::string::npos;
    const bool named =
        std::find(options.periodic.begin(), options.periodic.end(), name) != options.periodic.end();
    const bool periodic = named || (longitude && goes_around(coordinates)) ||
                          closes_circle(*reader_, name, coordinates);
    const std::int64_t size = v.shape[d] / options.multiple * options.multiple;
    if (size == 0)
      throw UsageError(str("data: dimension \"", name, "\" has ", v.shape[d],
                           " points, fewer than ", options.multiple, "."));
    if (periodic && size != v.shape[d])
      throw UsageError(str("data: the periodic dimension \"", name, "\" has ", v.shape[d],
                           " points, which is not a multiple of ", options.multiple,
                           ". Use another factor."));
    shape_.push_back(size);
    periodic_.push_back(periodic);
    if (coordinates.empty())
      for (std::int64_t i = 0; i < size; ++i) coordinates.push_back(static_cast<double>(i));
    coordinates.resize(static_cast<std::size_t>(size));
    coordinates_.push_back(std::move(coordinates));
  }
  for (const std::string& name : options.periodic) dim(name);
}

int GridField::dim(const std::string& name) const {
  std::string list;
  std::vector<std::string> names;
  for (int d = 0; d < dims(); ++d) {
    if (dim_name(d) == name) return d;
    if (d > 0) list += ", ";
    list += dim_name(d);
    names.push_back(dim_name(d));
  }
  throw UsageError(str("data: the grid of \"", variable_->name, "\" has no dimension \"", name,
                       "\" (it has: ", list, ").", io::did_you_mean(name, names)));
}

std::string GridField::coordinate_attribute(int dim, const std::string& name) const {
  if (!reader_->contains(dim_name(dim))) return "";
  const auto& attributes = reader_->variable(dim_name(dim)).attributes;
  const auto found = attributes.find(name);
  if (found == attributes.end()) return "";
  const auto* text = std::get_if<std::string>(&found->second);
  return text ? *text : "";
}

void GridField::read(std::int64_t field, const Box& box, const View& out) const {
  if (field < 0 || field >= fields())
    throw ShapeError(str("data: field ", field, " of ", fields(), " in ", path(), "."));
  if (box.dims() != dims() || out.shape != box.shape())
    throw ShapeError(str("data: window ", box.str(), " into a view of shape ", out.shape, "."));
  if (box.empty()) return;

  // Each dimension as pieces that do not cross the edge: where in the file, where in the window.
  struct Piece1 {
    Interval file;
    std::int64_t at;
  };
  std::vector<std::vector<Piece1>> pieces;
  Box choices = Box::whole(Shape::filled(dims(), 1));
  for (int d = 0; d < dims(); ++d) {
    const std::int64_t n = shape_[d];
    if (!periodic(d) && (box.lo[d] < 0 || box.hi[d] > n))
      throw ShapeError(str("data: window ", box.str(), " leaves the field of shape ", shape_, "."));
    std::vector<Piece1> list;
    for (std::int64_t i = box.lo[d]; i < box.hi[d];) {
      const std::int64_t lo = ((i % n) + n) % n;
      const std::int64_t count = std::min(n - lo, box.hi[d] - i);
      list.push_back({{lo, lo + count}, i - box.lo[d]});
      i += count;
    }
    choices.hi[d] = static_cast<std::int64_t>(list.size());
    pieces.push_back(std::move(list));
  }
  Index lead = Dims::filled(lead_.size(), 0);
  for (int d = lead_.size() - 1; d >= 0; --d) {
    lead[d] = field % lead_[d];
    field /= lead_[d];
  }
  for_each_index(choices, [&](const Index& choice) {
    Box file;
    Box window;
    Shape shape;
    Strides strides;
    for (const std::int64_t i : lead) {
      file.lo.push_back(i);
      file.hi.push_back(i + 1);
      shape.push_back(1);
      strides.push_back(0);
    }
    for (int d = 0; d < dims(); ++d) {
      const Piece1& piece =
          pieces[static_cast<std::size_t>(d)][static_cast<std::size_t>(choice[d])];
      file.lo.push_back(piece.file.lo);
      file.hi.push_back(piece.file.hi);
      window.lo.push_back(piece.at);
      window.hi.push_back(piece.at + piece.file.size());
      shape.push_back(piece.file.size());
      strides.push_back(out.strides[d]);
    }
    View part = out.slice(window);
    part.shape = shape;
    part.strides = strides;
    reader_->read(variable_->name, file, part);
  });
}

Interval GridField::interval(int dim, double lo, double hi) const {
  const auto& x = coordinates(dim);
  const auto n = static_cast<std::int64_t>(x.size());
  const double period = periodic(dim) ? 360.0 : 0.0;
  // Coordinates are often rounded; half a thousandth of a cell is no difference.
  const double slack = n > 1 ? 5e-4 * std::abs(x[1] - x[0]) : 0.0;
  std::vector<char> inside(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    double offset = x[i] - lo;
    if (period > 0) offset -= period * std::floor((offset + slack) / period);
    inside[i] = offset >= -slack && offset < hi - lo - slack;
  }
  const auto at = [&](std::int64_t i) {
    return inside[static_cast<std::size_t>(((i % n) + n) % n)] != 0;
  };
  const std::int64_t count = std::count(inside.begin(), inside.end(), 1);
  if (count == 0 || count == n) return {0, count};
  std::int64_t first = 0;
  while (!(at(first) && !at(first - 1)) && !(at(first) && first == 0 && period == 0)) ++first;
  std::int64_t last = first;
  while (last - first < count && at(last)) ++last;
  if (last - first != count)
    throw UsageError(str("data: the points with ", dim_name(dim), " from ", lo, " to ", hi,
                         " are not contiguous."));
  return {first, last};
}

}  // namespace tessera::data
