#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <tessera/core/error.hpp>
#include <tessera/nn/io/vtk.hpp>

#include "io/box_exchange.hpp"
#include "io/convert.hpp"
#include "io/vtk_file.hpp"

namespace tessera::io {
namespace {

using Bytes = std::vector<std::byte>;
using Section = VtkSlot::Section;

std::int64_t corners_of(VtkCell kind) {
  switch (kind) {
    case VtkCell::kVertex:
      return 1;
    case VtkCell::kLine:
      return 2;
    case VtkCell::kTriangle:
      return 3;
    case VtkCell::kHexahedron:
      return 8;
    default:
      return 4;
  }
}

std::int64_t components_of(const Tensor& values) { return values.dims() > 1 ? values.size(1) : 1; }

void check(const VtkMesh& mesh,
           const std::vector<VtkArray>& point_values,
           const std::vector<VtkArray>& cell_values) {
  const Tensor& x = mesh.points;
  if (x.dims() != 2 || x.size(1) < 1 || x.size(1) > 3 || !is_floating(x.dtype()))
    throw ShapeError(str("vtk: points of shape ", x.shape(), " and type ", name(x.dtype()),
                         " (they are [points, 1 to 3] of floating type)."));
  if (mesh.cells.defined() &&
      (mesh.cells.dims() != 2 || mesh.cells.size(1) != corners_of(mesh.kind) ||
       (mesh.cells.dtype() != DType::kInt64 && mesh.cells.dtype() != DType::kInt32)))
    throw ShapeError(str("vtk: cells of shape ", mesh.cells.shape(), " and type ",
                         name(mesh.cells.dtype()), " (these are [cells, ", corners_of(mesh.kind),
                         "] of i64 or i32)."));
  const std::int64_t cells = mesh.cells.defined() ? mesh.cells.size(0) : x.size(0);
  const auto check_rows = [](const std::vector<VtkArray>& all, std::int64_t rows, const char* of) {
    for (const VtkArray& a : all)
      if (a.values.dims() < 1 || a.values.dims() > 2 || a.values.size(0) != rows)
        throw ShapeError(str("vtk: \"", a.name, "\" of shape ", a.values.shape(), " at ", rows, " ",
                             of, ". Give [", of, "] or [", of, ", C]."));
  };
  check_rows(point_values, x.size(0), "points");
  check_rows(cell_values, cells, "cells");
}

/// A tensor whose rows are written, this rank's of them, and where those of all ranks are.
struct Rows {
  Tensor tensor;
  TensorPart part;
  std::vector<Box> held;
  DType dtype;

  Rows(const Tensor& t, const MeshRanks& ranks)
      : tensor(t),
        part(part_in("vtk", t, t.shape())),
        held(all_boxes(ranks, part.box)),
        dtype(common_type(t.dtype())) {
    for (const Box& box : held)
      if (t.dims() > 1 && !box.empty() && box[1].size() != t.size(1))
        throw LayoutError(
            str("vtk: a tensor in layout ", t.layout().str(),
                " (rows are cut). Redistribute it so that only dimension 0 is split."));
  }
  std::vector<std::int64_t> own() const {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(part.box[0].size()));
    std::iota(rows.begin(), rows.end(), part.box.lo[0]);
    return rows;
  }
  Bytes fetch(const MeshRanks& ranks, const std::vector<std::int64_t>& rows) const {
    return fetch_rows("vtk", ranks, held, part.view, dtype, rows);
  }
};

/// Rows of 1 to 3 coordinates as rows of 3.
Bytes padded_points(const Bytes& points, std::int64_t dims, DType dtype) {
  if (dims == 3) return points;
  const std::size_t element = size_of(dtype);
  const std::size_t row = static_cast<std::size_t>(dims) * element;
  Bytes out(row == 0 ? 0 : points.size() / row * 3 * element);
  for (std::size_t i = 0; i * row < points.size(); ++i)
    std::memcpy(out.data() + i * 3 * element, points.data() + i * row, row);
  return out;
}

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// The corners of the cells that this rank has, by the numbers of points.
std::vector<std::int64_t> own_corners(const VtkMesh& mesh, const Rows& points, const Rows* cells) {
  if (cells == nullptr) return points.own();
  const Bytes bytes =
      dense_part("vtk", cells->part.box, cells->part.view, cells->part.box, DType::kInt64);
  std::vector<std::int64_t> corners(bytes.size() / sizeof(std::int64_t));
  if (!bytes.empty()) std::memcpy(corners.data(), bytes.data(), bytes.size());
  for (const std::int64_t c : corners)
    if (c < 0 || c >= mesh.points.size(0))
      throw UsageError(str("vtk: a cell has the corner ", c, ", but there are ",
                           mesh.points.size(0), " points. Corners are rows of the points."));
  return corners;
}

/// The cells of a piece.
struct Cells {
  std::vector<std::int64_t> corners, offsets;
  std::vector<std::uint8_t> types;

  Cells(std::vector<std::int64_t> all, VtkCell kind, std::int64_t first) : corners(std::move(all)) {
    const std::int64_t each = corners_of(kind);
    const std::int64_t count = std::ssize(corners) / each;
    for (std::int64_t i = 1; i <= count; ++i) offsets.push_back((first + i) * each);
    types.assign(static_cast<std::size_t>(count), static_cast<std::uint8_t>(kind));
  }
};

}  // namespace

void write_vtk_mesh(const std::string& path,
                    const VtkMesh& mesh,
                    const std::vector<VtkArray>& point_values,
                    const std::vector<VtkArray>& cell_values) {
  const bool pieces = in_pieces(path, "vtu");
  check(mesh, point_values, cell_values);
  const MeshRanks ranks(mesh.points.mesh());
  const Rows points(mesh.points, ranks);
  std::optional<Rows> cells;
  if (mesh.cells.defined()) cells.emplace(mesh.cells, ranks);
  const Rows& with_cells = cells ? *cells : points;  // whose rows are those of the cells
  std::vector<std::int64_t> corners;
  ranks.together([&] { corners = own_corners(mesh, points, cells ? &*cells : nullptr); });

  std::vector<VtkSlot> slots;
  const auto lay_out = [&](std::int64_t point_count, std::int64_t cell_count) {
    slots.clear();
    for (const VtkArray& a : point_values)
      slots.push_back({Section::kPointData, a.name, common_type(a.values.dtype()), point_count,
                       components_of(a.values)});
    for (const VtkArray& a : cell_values)
      slots.push_back({Section::kCellData, a.name, common_type(a.values.dtype()), cell_count,
                       components_of(a.values)});
    slots.push_back({Section::kPoints, "Points", points.dtype, point_count, 3});
    slots.push_back(
        {Section::kCells, "connectivity", DType::kInt64, cell_count * corners_of(mesh.kind), 1});
    slots.push_back({Section::kCells, "offsets", DType::kInt64, cell_count, 1});
    slots.push_back({Section::kCells, "types", DType::kUInt8, cell_count, 1});
    return VtkHeader{.kind = "UnstructuredGrid",
                     .piece = fmt::format("NumberOfPoints=\"{}\" NumberOfCells=\"{}\"", point_count,
                                          cell_count)};
  };

  if (!pieces) {
    const std::int64_t all_points = mesh.points.size(0);
    const std::int64_t all_cells = with_cells.tensor.size(0);
    const VtkHeader header = lay_out(all_points, all_cells);
    VtkFile out(path, header, slots, ranks);
    ranks.together([&] {
      std::size_t next = 0;
      const auto put = [&](const TensorPart& part, Shape shape) {
        out.file().write_box("vtk", out.array(next++, shape), part.box, part.view);
      };
      const auto put_rows = [&](const Bytes& bytes, std::int64_t first, std::int64_t row_bytes) {
        const FileArray array = out.array(next++, {});
        out.file().write(bytes.data(), std::ssize(bytes), array.offset + first * row_bytes);
      };
      for (const auto* values : {&point_values, &cell_values})
        for (const VtkArray& a : *values)
          put(part_in("vtk", a.values, a.values.shape()), a.values.shape());
      const std::int64_t first_point = points.part.box.lo[0];
      const std::int64_t first_cell = with_cells.part.box.lo[0];
      const Bytes x =
          dense_part("vtk", points.part.box, points.part.view, points.part.box, points.dtype);
      put_rows(padded_points(x, mesh.points.size(1), points.dtype), first_point,
               3 * static_cast<std::int64_t>(size_of(points.dtype)));
      const Cells own(std::move(corners), mesh.kind, first_cell);
      put_rows(bytes_of(own.corners), first_cell, 8 * corners_of(mesh.kind));
      put_rows(bytes_of(own.offsets), first_cell, 8);
      put_rows(bytes_of(own.types), first_cell, 1);
      out.file().sync();
    });
    out.file().commit();
    return;
  }

  // Own points first, then those of others that own cells need.
  std::vector<std::int64_t> rows = points.own();
  const Interval own = points.part.box[0];
  std::vector<std::int64_t> ghosts;
  for (const std::int64_t c : corners)
    if (c < own.lo || c >= own.hi) ghosts.push_back(c);
  std::sort(ghosts.begin(), ghosts.end());
  ghosts.erase(std::unique(ghosts.begin(), ghosts.end()), ghosts.end());
  for (std::int64_t& c : corners) {
    if (c >= own.lo && c < own.hi) {
      c -= own.lo;
    } else {
      c = own.size() + (std::lower_bound(ghosts.begin(), ghosts.end(), c) - ghosts.begin());
    }
  }
  rows.insert(rows.end(), ghosts.begin(), ghosts.end());
  const std::vector<std::int64_t> cell_rows = with_cells.own();
  const VtkHeader header = lay_out(std::ssize(rows), std::ssize(cell_rows));
  VtkPiece mine = {.empty = rows.empty(), .header = header, .arrays = {}};
  std::size_t next = 0;
  const auto add = [&](Bytes bytes) { mine.arrays.push_back({slots[next++], std::move(bytes)}); };
  for (const VtkArray& a : point_values) add(Rows(a.values, ranks).fetch(ranks, rows));
  for (const VtkArray& a : cell_values) add(Rows(a.values, ranks).fetch(ranks, cell_rows));
  add(padded_points(points.fetch(ranks, rows), mesh.points.size(1), points.dtype));
  const Cells all(std::move(corners), mesh.kind, 0);
  add(bytes_of(all.corners));
  add(bytes_of(all.offsets));
  add(bytes_of(all.types));
  std::vector<std::optional<std::string>> places;
  for (std::size_t r = 0; r < points.held.size(); ++r) {
    const bool empty = points.held[r].empty() && with_cells.held[r].empty();
    places.push_back(empty ? std::nullopt : std::optional<std::string>(""));
  }
  write_vtk_pieces(path, mine, slots, places, ranks);
}

}  // namespace tessera::io
