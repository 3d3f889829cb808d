#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/pool.hpp>
#include <tessera/nn/checkpoint.hpp>

#include "grid_tasks.hpp"
#include "mesh_option.hpp"
#include "pictures.hpp"
#include "use.hpp"

namespace tessera::app {
namespace {

/// Widest picture of a whole field, in points.
constexpr std::int64_t kPictureWidth = 1440;

/// The field itself as input of a network, normalised; missing points stand at the mean.
Tensor read_input(const data::GridField& field,
                  std::int64_t index,
                  const Layout& layout,
                  const data::Normalization& norm,
                  DType dtype) {
  const Tensor input = Tensor::empty(layout, dtype);
  if (input.local_box().empty()) return input;
  Box box;
  for (int d = 1; d + 1 < layout.dims(); ++d) {
    box.lo.push_back(input.local_box().lo[d]);
    box.hi.push_back(input.local_box().hi[d]);
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

/// The whole field on every rank, reduced by block means to at most kPictureWidth columns.
std::vector<double> overview(const Tensor& y, Shape& shape) {
  const std::int64_t k = (y.size(2) + kPictureWidth - 1) / kPictureWidth;
  const Tensor small = k > 1 ? avg_pool(y, {.kernel = {k, k}, .ceil_mode = true}) : y;
  const Tensor whole = replicate(small);
  shape = {whole.size(1), whole.size(2)};
  const View view = whole.local();
  std::vector<double> values;
  for (std::int64_t r = 0; r < shape[0]; ++r) {
    for (std::int64_t c = 0; c < shape[1]; ++c) {
      values.push_back(
          load_as_double(view.data, view.dtype, r * view.strides[1] + c * view.strides[2]));
    }
  }
  return values;
}

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
  Shape shape = {1};
  for (const std::int64_t n : coarse_grid) shape.push_back(n);
  shape.push_back(trained.model->transform().in_channels);
  const Layout input =
      field_placement(mesh, dims).resolve(shape, {.multiple = trained.model->total_stride()});

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
         .size = coarse_grid[d] * factor,
         .coordinates = pairs ? std::vector<double>(x.begin(), x.begin() + coarse_grid[d] * factor)
                              : refined(x, factor),
         .attributes = units(field.coordinate_attribute(d, "units"))});
    spec.dims.push_back(field.dim_name(d));
  }
  io::NetcdfWriter writer(options.output, dimensions, {spec},
                          {{"history", std::string("refined by tessera predict")}}, ranks);
  std::vector<double> values;
  Shape picture;
  for (std::int64_t f = 0; f < field.fields(); ++f) {
    Tensor x;
    if (pairs) {
      const Layout fine = pairs->fine_layout(input);
      x = pairs->window(Box::whole(coarse_grid), input, fine, dtype, f).input;
    } else {
      ranks.together([&] { x = read_input(field, f, input, norm, dtype); });
    }
    const NoGrad no_grad;
    const Tensor y = trained(x) * norm.std + norm.mean;
    Box box;
    View view = y.local();
    view.strides.erase(view.strides.size() - 1);
    view.shape.erase(view.shape.size() - 1);
    if (field.fields() > 1) {
      box.lo.push_back(f);
      box.hi.push_back(f + 1);
    } else {
      view.strides.erase(0);
      view.shape.erase(0);
    }
    for (int d = 1; d <= dims; ++d) {
      box.lo.push_back(y.local_box().lo[d]);
      box.hi.push_back(y.local_box().hi[d]);
    }
    // A part that others hold too is written once.
    if (!io::is_first_replica(y.layout())) {
      box = Box(box.lo, box.lo);
      view.shape = box.shape();
    }
    writer.write_box(spec.name, box, view);
    if (f == 0 && dims == 2) values = overview(y, picture);
  }
  writer.commit();
  ranks.together([&] {
    if (mesh.rank() != 0 || dims != 2) return;
    const std::vector<double>& rows = field.coordinates(0);
    draw_field(std::filesystem::path(options.output).replace_extension(".png").string(), picture,
               values,
               fmt::format("{}, refined {} times: {} x {} points", spec.name, factor,
                           coarse_grid[0] * factor, coarse_grid[1] * factor),
               unit_of(field.variable()), rows.size() < 2 || rows.front() < rows.back());
  });
  return 0;
}

}  // namespace tessera::app
