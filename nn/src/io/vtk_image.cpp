#include <fmt/format.h>

#include <tessera/core/error.hpp>
#include <tessera/nn/io/vtk.hpp>

#include "io/box_exchange.hpp"
#include "io/convert.hpp"
#include "io/vtk_file.hpp"

namespace tessera::io {
namespace {

/// VTK's order, x first, of up to three domain dimensions.
std::string vtk_order(const std::vector<double>& values, int dims, double rest) {
  std::string text;
  for (int i = 0; i < 3; ++i) {
    const int d = dims - 1 - i;
    text += fmt::format("{}{}", i > 0 ? " " : "",
                        d >= 0 && !values.empty() ? values[static_cast<std::size_t>(d)] : rest);
  }
  return text;
}

/// First and last point along x, y, z of a box of the domain.
std::string extent(const Box& box, bool cells) {
  std::string text;
  for (int i = 0; i < 3; ++i) {
    const int d = box.dims() - 1 - i;
    text += fmt::format("{}{} {}", i > 0 ? " " : "", d < 0 ? 0 : box.lo[d],
                        d < 0 ? 0 : box.hi[d] - (cells ? 0 : 1));
  }
  return text;
}

Shape domain_of(const Tensor& field) {
  Shape domain;
  for (int d = 1; d + 1 < field.dims(); ++d) domain.push_back(field.size(d));
  return domain;
}

/// The box of a field at the domain box `box`: one sample, all channels.
Box field_box(const Tensor& field, const Box& box, std::int64_t sample) {
  Box whole = Box::whole(field.shape());
  whole.set(0, {sample, sample + 1});
  for (int d = 0; d < box.dims(); ++d) whole.set(d + 1, box[d]);
  return whole;
}

/// This rank's part of a field in the chosen sample.
TensorPart part_of(const Tensor& field, std::int64_t sample) {
  TensorPart part = part_in("vtk", field, field.shape());
  if (part.box.empty()) return part;
  const Interval held = intersect(part.box[0], {sample, sample + 1});
  Box in_view = Box::whole(part.view.shape);
  in_view.set(0, held.empty() ? Interval{0, 0}
                              : Interval{held.lo - part.box.lo[0], held.hi - part.box.lo[0]});
  part.view = part.view.slice(in_view);
  part.box.set(0, held);
  return part;
}

void check(const std::vector<VtkArray>& fields, const VtkGrid& grid) {
  if (fields.empty()) throw UsageError("vtk: no fields to write. Give at least one.");
  const Shape domain = domain_of(fields[0].values);
  for (const VtkArray& f : fields) {
    const int dims = f.values.dims();
    if (dims < 3 || dims > 5 || f.values.shape().product() == 0 || domain_of(f.values) != domain)
      throw ShapeError(str("vtk: field \"", f.name, "\" of shape ", f.values.shape(),
                           " does not belong into an image of ", domain,
                           " (fields are [N, domain..., C], of 1 to 3 domain dimensions, the same "
                           "for all, and not empty)."));
    if (grid.sample < 0 || grid.sample >= f.values.size(0))
      throw UsageError(
          str("vtk: field \"", f.name, "\" has no sample ", grid.sample, ". Choose another."));
  }
  for (const auto* values : {&grid.origin, &grid.spacing})
    if (!values->empty() && std::ssize(*values) != domain.size())
      throw UsageError(str("vtk: origin or spacing has ", values->size(), " numbers for ",
                           domain.size(), " domain dimensions. Give one for each."));
}

/// The part of the domain that rank r writes: its own one, and at points those that follow it.
/// Empty when others write all of it.
Box piece_box(const Box& held, const Shape& domain, bool cells) {
  Box box;
  for (int d = 0; d < domain.size(); ++d) {
    box.lo.push_back(held.lo[d + 1]);
    box.hi.push_back(held.hi[d + 1]);
  }
  // Where channels are split, the one that has the first of them.
  bool writes = !held.empty() && held.lo[held.dims() - 1] == 0;
  for (int d = 0; writes && !cells && d < domain.size(); ++d) {
    box.hi[d] = std::min(box.hi[d] + 1, domain[d]);
    // The last points alone: the piece before ends with them.
    writes = box[d].size() > 1 || domain[d] == 1;
  }
  if (!writes) box.hi = box.lo;
  return box;
}

}  // namespace

void write_vtk_image(const std::string& path,
                     const std::vector<VtkArray>& fields,
                     const VtkGrid& grid) {
  const bool pieces = in_pieces(path, "vti");
  check(fields, grid);
  const Shape domain = domain_of(fields[0].values);
  const MeshRanks ranks(fields[0].values.mesh());
  const auto here = static_cast<std::size_t>(ranks.rank);
  const auto slot = [&](const VtkArray& f, const Box& box) {
    return VtkSlot{
        .section = grid.cells ? VtkSlot::Section::kCellData : VtkSlot::Section::kPointData,
        .name = f.name,
        .dtype = common_type(f.values.dtype()),
        .tuples = box.volume(),
        .components = f.values.size(-1)};
  };
  std::vector<VtkSlot> slots;
  for (const VtkArray& f : fields) slots.push_back(slot(f, Box::whole(domain)));
  const auto header = [&](const Box& box) {
    return VtkHeader{.kind = "ImageData",
                     .attributes = fmt::format(" WholeExtent=\"{}\" Origin=\"{}\" Spacing=\"{}\"",
                                               extent(Box::whole(domain), grid.cells),
                                               vtk_order(grid.origin, domain.size(), 0.0),
                                               vtk_order(grid.spacing, domain.size(), 1.0)),
                     .piece = fmt::format("Extent=\"{}\"", extent(box, grid.cells))};
  };
  std::vector<TensorPart> parts;
  for (const VtkArray& f : fields) parts.push_back(part_of(f.values, grid.sample));

  if (!pieces) {
    VtkFile out(path, header(Box::whole(domain)), slots, ranks);
    ranks.together([&] {
      for (std::size_t i = 0; i < fields.size(); ++i) {
        Shape shape = fields[i].values.shape();
        shape[0] = 1;
        Box box = parts[i].box;
        box.set(0, {0, box[0].size()});
        out.file().write_box("vtk", out.array(i, shape), box, parts[i].view);
      }
      out.file().sync();
    });
    out.file().commit();
    return;
  }

  const std::vector<Box> held = all_boxes(ranks, parts[0].box);
  std::vector<Box> boxes;
  std::vector<std::optional<std::string>> places;
  for (const Box& box : held) {
    boxes.push_back(piece_box(box, domain, grid.cells));
    places.emplace_back();
    if (!boxes.back().empty())
      places.back() = fmt::format("Extent=\"{}\" ", extent(boxes.back(), grid.cells));
  }
  VtkPiece mine = {.empty = boxes[here].empty(), .header = header(boxes[here]), .arrays = {}};
  for (std::size_t i = 0; i < fields.size(); ++i) {
    std::vector<Box> wanted;
    for (const Box& box : boxes) {
      wanted.push_back(field_box(fields[i].values, box, grid.sample));
      if (box.empty()) wanted.back().hi = wanted.back().lo;
    }
    mine.arrays.push_back({slot(fields[i], boxes[here]),
                           fetch_box("vtk", ranks, i == 0 ? held : all_boxes(ranks, parts[i].box),
                                     parts[i].view, slots[i].dtype, wanted)});
  }
  write_vtk_pieces(path, mine, slots, places, ranks);
}

}  // namespace tessera::io
