#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/io/netcdf.hpp>

#include "grid_tasks.hpp"
#include "mesh_option.hpp"
#include "output_file.hpp"
#include "pictures.hpp"
#include "use.hpp"

namespace tessera::app {
namespace {

/// Widest picture of a whole field, in points.
constexpr std::int64_t kPictureWidth = 1440;

/// A window of the field itself as input of a network, normalised; missing points stand at the
/// mean.
Tensor read_input(const data::GridField& field,
                  std::int64_t index,
                  const Box& window,
                  const Layout& layout,
                  const data::Normalization& norm,
                  DType dtype) {
  const Tensor input = Tensor::empty(layout, dtype);
  if (input.local_box().empty()) return input;
  Box box;
  for (int d = 1; d + 1 < layout.dims(); ++d) {
    box.lo.push_back(window.lo[d - 1] + input.local_box().lo[d]);
    box.hi.push_back(window.lo[d - 1] + input.local_box().hi[d]);
  }
  const View view = input.mutable_local();
  View grid = view;
  grid.shape = box.shape();
  grid.strides.erase(grid.strides.size() - 1);
  grid.strides.erase(0);
  field.read(index, box, grid);
  for (std::int64_t i = 0; i < view.size(); ++i) {
    const double v = (load_as_double(view.data, dtype, i) - norm.mean) / norm.std;
    store_double(view.data, dtype, i, std::isnan(v) ? 0.0 : v);
  }
  return input;
}

/// Coordinates of the points of a grid `factor` times as fine, by interpolation.
std::vector<double> refined(const std::vector<double>& x, std::int64_t factor) {
  std::vector<double> fine;
  const auto n = static_cast<std::int64_t>(x.size());
  for (std::int64_t i = 0; i < n * factor; ++i) {
    const double at = (static_cast<double>(i) + 0.5) / static_cast<double>(factor) - 0.5;
    const std::int64_t k = std::clamp<std::int64_t>(static_cast<std::int64_t>(std::floor(at)), 0,
                                                    std::max<std::int64_t>(n - 2, 0));
    const double a = x[static_cast<std::size_t>(k)];
    const double b = x[static_cast<std::size_t>(std::min(k + 1, n - 1))];
    fine.push_back(a + (at - static_cast<double>(k)) * (b - a));
  }
  return fine;
}

io::NetcdfAttributes units(const std::string& text) {
  io::NetcdfAttributes attributes;
  if (!text.empty()) attributes["units"] = text;
  return attributes;
}

/// A 2-D field reduced by block means to at most kPictureWidth columns, put together by all ranks.
class Overview {
 public:
  explicit Overview(const Shape& size)
      : block_((size[1] + kPictureWidth - 1) / kPictureWidth),
        shape_{(size[0] + block_ - 1) / block_, (size[1] + block_ - 1) / block_},
        sums_(static_cast<std::size_t>(shape_.product()), 0.0) {}
  const Shape& shape() const { return shape_; }
  /// `box` in points of the field, `values` [rows, columns].
  void add(const Box& box, const View& values) {
    for (std::int64_t r = box.lo[0]; r < box.hi[0]; ++r) {
      for (std::int64_t c = box.lo[1]; c < box.hi[1]; ++c) {
        const std::int64_t offset =
            (r - box.lo[0]) * values.strides[0] + (c - box.lo[1]) * values.strides[1];
        sums_[static_cast<std::size_t>(r / block_ * shape_[1] + c / block_)] +=
            load_as_double(values.data, values.dtype, offset);
      }
    }
  }
  std::vector<double> means(const Shape& size, const io::Collective& ranks) const {
    std::vector<double> all = ranks.total(sums_);
    for (std::int64_t r = 0; r < shape_[0]; ++r) {
      for (std::int64_t c = 0; c < shape_[1]; ++c) {
        const std::int64_t rows = std::min((r + 1) * block_, size[0]) - r * block_;
        const std::int64_t columns = std::min((c + 1) * block_, size[1]) - c * block_;
        all[static_cast<std::size_t>(r * shape_[1] + c)] /= static_cast<double>(rows * columns);
      }
    }
    return all;
  }

 private:
  std::int64_t block_;
  Shape shape_;
  std::vector<double> sums_;
};

}  // namespace

int predict_refine(const PredictOptions& options, const Trained& trained, const Mesh& mesh) {
  const io::Collective ranks = nn::collective(mesh);
  const GridSettings& settings = GridSettings::of(*trained.settings);
  const DType dtype = trained.settings->dtype();
  const data::Normalization norm = normalization_of(trained);
  RefinedField from = refined_field(*trained.settings);
  from.holdout.clear();
  if (!options.input.empty() && options.input != settings.file) {
    from.field.path = options.input;
    from.field.variable = options.variable;
  } else if (!options.variable.empty()) {
    from.field.variable = options.variable;
  }
  if (settings.coordinates && !options.coarsen) {
    throw NotSupported(
        "predict: this network wants coordinates, which are only known for a grid that is made "
        "coarser. Add --coarsen, or train with data.coordinates = false.");
  }

  std::optional<data::SuperResolution> pairs;
  std::optional<data::GridField> alone;
  if (options.coarsen) {
    pairs.emplace(open_refine_data(*trained.settings, from, mesh, norm));
  } else {
    alone.emplace(from.field);
  }
  const data::GridField& field = pairs ? pairs->field() : *alone;
  const int dims = field.dims();
  if (dims != trained.model->transform().dims) {
    throw UsageError(str("predict: the field has ", dims,
                         " dimensions, the network was trained on ",
                         trained.model->transform().dims, "."));
  }
  const std::int64_t factor = settings.factor;
  const Shape coarse_grid = pairs ? pairs->coarse_shape() : field.shape();
  const std::vector<Tile> tiles = tiles_for(options.tile, trained, coarse_grid);
  Shape fine_grid;
  for (const std::int64_t n : coarse_grid) fine_grid.push_back(n * factor);

  std::vector<io::NetcdfDimension> dimensions;
  io::NetcdfVariableSpec spec = {.name = field.variable().name,
                                 .dims = {},
                                 .dtype = dtype,
                                 .attributes = units(unit_of(field.variable()))};
  if (field.fields() > 1) {
    dimensions.push_back({.name = "field", .size = field.fields()});
    spec.dims.push_back("field");
  }
  for (int d = 0; d < dims; ++d) {
    const std::vector<double>& x = field.coordinates(d);
    dimensions.push_back(
        {.name = field.dim_name(d),
         .size = fine_grid[d],
         .coordinates =
             pairs ? std::vector<double>(x.begin(), x.begin() + fine_grid[d]) : refined(x, factor),
         .attributes = units(field.coordinate_attribute(d, "units"))});
    spec.dims.push_back(field.dim_name(d));
  }
  OutputFile writer(mesh, options.output, dimensions, {spec},
                    {{"history", std::string("refined by tessera predict")}});
  std::optional<Overview> picture;
  if (dims == 2) picture.emplace(fine_grid);
  const NoGrad no_grad;
  for (std::int64_t f = 0; f < field.fields(); ++f) {
    for (const Tile& tile : tiles) {
      const Layout input =
          field_layout(mesh, 1, tile.window.shape(), trained.model->transform().in_channels,
                       trained.model->total_stride());
      Tensor x;
      if (pairs) {
        x = pairs->window(tile.window, input, pairs->fine_layout(input), dtype, f).input;
      } else {
        ranks.together([&] { x = read_input(field, f, tile.window, input, norm, dtype); });
      }
      Tensor y = (options.mirrors ? trained.over_mirrors(x) : trained(x)) * norm.std + norm.mean;
      for (int d = 0; d < dims; ++d) {
        const std::int64_t from_edge = (tile.part.lo[d] - tile.window.lo[d]) * factor;
        y = slice(y, d + 1, from_edge, from_edge + tile.part[d].size() * factor);
      }
      Box box;
      View view = y.local();
      view.strides.erase(dims + 1);
      view.shape.erase(dims + 1);
      view.strides.erase(0);
      const bool holds = view.shape[0] > 0;  // the sample
      view.shape.erase(0);
      for (int d = 1; d <= dims; ++d) {
        const std::int64_t start = tile.part.lo[d - 1] * factor;
        box.lo.push_back(start + y.local_box().lo[d]);
        box.hi.push_back(start + (holds ? y.local_box().hi[d] : y.local_box().lo[d]));
      }
      // A part that others hold too is written once.
      if (!io::is_first_replica(y.layout())) box = Box(box.lo, box.lo);
      view.shape = box.shape();
      if (f == 0 && picture) picture->add(box, view);
      if (field.fields() > 1) {
        box.lo.insert(0, f);
        box.hi.insert(0, f + 1);
        view.shape.insert(0, 1);
        view.strides.insert(0, 0);
      }
      writer.write_box(spec.name, box, view);
    }
  }
  writer.commit();
  std::vector<double> values;
  if (picture) values = picture->means(fine_grid, ranks);
  ranks.together([&] {
    if (mesh.rank() != 0 || dims != 2) return;
    Degrees degrees = degrees_of(field, 0);
    if (!degrees.latitudes.empty())
      degrees = {dimensions[dimensions.size() - 2].coordinates, dimensions.back().coordinates};
    draw_field(std::filesystem::path(options.output).replace_extension(".png").string(),
               {.shape = picture->shape(),
                .values = values,
                .title = fmt::format("{}, refined {} times: {} x {} points", spec.name, factor,
                                     fine_grid[0], fine_grid[1]),
                .unit = unit_of(field.variable()),
                .first_row_below = ascending(field, 0),
                .relief = true,
                .degrees = degrees});
  });
  return 0;
}

}  // namespace tessera::app
