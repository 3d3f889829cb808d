#include <fmt/format.h>

#include <filesystem>
#include <tessera/autograd/autograd.hpp>
#include <tessera/autograd/ops/elementwise.hpp>
#include <tessera/autograd/ops/shape.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/io/netcdf.hpp>
#include <tessera/nn/io/safetensors.hpp>

#include "grid_tasks.hpp"
#include "output_file.hpp"
#include "pictures.hpp"
#include "use.hpp"

namespace tessera::app {
namespace {

io::NetcdfAttributes units(const std::string& text) {
  io::NetcdfAttributes attributes;
  if (!text.empty()) attributes["units"] = text;
  return attributes;
}

}  // namespace

int predict_forecast(const PredictOptions& options, const Trained& trained, const Mesh& mesh) {
  const GridSettings& settings = GridSettings::of(*trained.settings);
  const std::vector<data::ForecastScale> scales = forecast_scales(trained);
  if (options.coarsen || !options.variable.empty() ||
      (!options.input.empty() && options.input != settings.file)) {
    throw UsageError(str("predict: the network of ", options.run,
                         " foretells what follows the file of its training (from which climatology "
                         "and scales are). Leave out --input, --variable and --coarsen."));
  }
  const io::Collective ranks = nn::collective(mesh);
  data::Forecast data = open_forecast(*trained.settings, mesh);
  place_forecast(data, mesh, 1, trained.model->total_stride(), scales);

  std::vector<io::NetcdfDimension> dimensions;
  const bool several = data.sequences() > 1;
  if (several) dimensions.push_back({.name = "sequence", .size = data.sequences()});
  const data::GridField& field = data.field(0);
  for (int d = 0; d < data.dims(); ++d) {
    dimensions.push_back({.name = field.dim_name(d),
                          .size = data.grid()[d],
                          .coordinates = field.coordinates(d),
                          .attributes = units(field.coordinate_attribute(d, "units"))});
  }
  std::vector<io::NetcdfVariableSpec> variables;
  for (int v = 0; v < data.variables(); ++v) {
    const io::FieldVariable& from = data.field(v).variable();
    io::NetcdfVariableSpec spec = {
        .name = from.name, .dims = {}, .attributes = units(unit_of(from))};
    for (const io::NetcdfDimension& d : dimensions) spec.dims.push_back(d.name);
    variables.push_back(spec);
  }
  OutputFile writer(mesh, options.output, dimensions, variables,
                    {{"history", str("foretold by tessera predict, lead ", settings.lead)}});
  std::vector<double> picture;
  for (std::int64_t s = 0; s < data.sequences(); ++s) {
    const data::ForecastBatch b = data.next(s, trained.settings->dtype());
    const NoGrad no_grad;
    const Tensor y = redistribute(cast(trained(b.input), DType::kFloat64), b.base.layout());
    for (int v = 0; v < data.variables(); ++v) {
      const Tensor x = slice(b.base, -1, v, v + 1) +
                       slice(y, -1, v, v + 1) * scales[static_cast<std::size_t>(v)].residual;
      View view = x.local();
      Box box = x.local_box();
      view.shape.erase(data.dims() + 1);
      view.strides.erase(data.dims() + 1);
      box.lo.erase(data.dims() + 1);
      box.hi.erase(data.dims() + 1);
      if (several) {
        box.lo[0] = s;
        box.hi[0] = s + 1;
      } else {
        view.shape.erase(0);
        view.strides.erase(0);
        box.lo.erase(0);
        box.hi.erase(0);
      }
      // A part that others hold too is written once.
      if (!io::is_first_replica(x.layout())) {
        box = Box(box.lo, box.lo);
        view.shape = box.shape();
      }
      writer.write_box(variables[static_cast<std::size_t>(v)].name, box, view);
      if (s > 0 || v > 0 || data.dims() != 2) continue;
      const Tensor whole = replicate(x);
      for_each_index(whole.local_box(), [&](const Index& i) { picture.push_back(whole.at(i)); });
    }
  }
  writer.commit();
  ranks.together([&] {
    if (mesh.rank() != 0 || picture.empty()) return;
    draw_field(std::filesystem::path(options.output).replace_extension(".png").string(),
               {.shape = data.grid(),
                .values = picture,
                .title = fmt::format("{}, foretold", field.variable().name),
                .unit = unit_of(field.variable()),
                .first_row_below = ascending(field, 0),
                .degrees = degrees_of(field, 0)});
  });
  return 0;
}

}  // namespace tessera::app
