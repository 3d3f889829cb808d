#include "generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/io/netcdf.hpp>
#include <tessera/nn/io/progress.hpp>
#include <tessera/nn/io/safetensors.hpp>
#include <tessera/parallel/runtime.hpp>

#include "mesh_option.hpp"
#include "output_file.hpp"
#include "stop_signals.hpp"

namespace tessera::app {
namespace {

using Clock = std::chrono::steady_clock;

/// Steps between two questions whether some rank was asked to stop.
constexpr std::int64_t kStepsPerQuestion = 32;

/// The local part of channel `c` of [samples, grid..., C] as [sample, time, grid...] (without the
/// sample dimension where there is one), at frame `frame`.
struct Part {
  View view;
  Box box;
};

Part part_of(const Tensor& fields, std::int64_t c, std::int64_t frame) {
  Part part = {fields.local(), fields.local_box()};
  const int last = fields.dims() - 1;
  Box channel = Box::whole(part.view.shape);
  channel.set(last, {c, c + 1});
  if (!part.view.empty()) part.view = part.view.slice(channel);
  part.view.shape.erase(last);
  part.view.strides.erase(last);
  part.box.lo.erase(last);
  part.box.hi.erase(last);
  part.view.shape.insert(1, 1);
  part.view.strides.insert(1, 0);
  part.box.lo.insert(1, frame);
  part.box.hi.insert(1, frame + 1);
  if (fields.size(0) == 1) {
    const bool empty = part.box[0].empty();
    part.view.shape.erase(0);
    part.view.strides.erase(0);
    part.box.lo.erase(0);
    part.box.hi.erase(0);
    if (empty) part.box.hi = part.box.lo;
  }
  if (!io::is_first_replica(fields.layout())) part.box.hi = part.box.lo;
  part.view.shape = part.box.shape();
  return part;
}

bool all_finite(const Tensor& t) {
  const View view = t.local();
  bool finite = true;
  for (std::int64_t i = 0; i < view.size(); ++i) {
    finite = finite && std::isfinite(load_as_double(view.data, view.dtype, i));
  }
  return finite;
}

/// The step after which frame `frame` is written.
std::int64_t step_of(const GenerateSettings& s, const solvers::Solver& solver, std::int64_t frame) {
  return std::llround(s.spin_up / solver.dt()) + frame * std::llround(s.interval / solver.dt());
}

std::vector<io::NetcdfDimension> dimensions_of(const GenerateSettings& s,
                                               const Shape& grid,
                                               const solvers::Solver& solver) {
  std::vector<io::NetcdfDimension> dimensions;
  if (s.samples > 1) dimensions.push_back({.name = "sample", .size = s.samples});
  io::NetcdfDimension time = {.name = "time", .size = s.frames};
  for (std::int64_t i = 0; i < s.frames; ++i) {
    time.coordinates.push_back(static_cast<double>(step_of(s, solver, i)) * solver.dt());
  }
  dimensions.push_back(time);
  const std::vector<double> lengths = solver.lengths();
  for (int d = 0; d < grid.size(); ++d) {
    const double length = lengths[static_cast<std::size_t>(d)];
    io::NetcdfDimension x = {.name = std::string(1, "zyx"[3 - grid.size() + d]), .size = grid[d]};
    for (std::int64_t i = 0; i < grid[d]; ++i) {
      x.coordinates.push_back((static_cast<double>(i) + 0.5) * length /
                              static_cast<double>(grid[d]));
    }
    x.attributes["modulo"] = std::vector<double>{length};
    dimensions.push_back(x);
  }
  return dimensions;
}

/// Largest difference from the exact answer, on every rank.
double heat_error(const solvers::Heat& heat, const io::Collective& ranks) {
  const Tensor exact = heat.exact();
  const View a = heat.state().local();
  const View b = exact.local();
  std::vector<double> worst(static_cast<std::size_t>(ranks.size), 0.0);
  double& own = worst[static_cast<std::size_t>(ranks.rank)];
  for (std::int64_t i = 0; i < a.size(); ++i) {
    own = std::max(
        own, std::abs(load_as_double(a.data, a.dtype, i) - load_as_double(b.data, b.dtype, i)));
  }
  ranks.combine(worst);
  return *std::max_element(worst.begin(), worst.end());
}

}  // namespace

int generate(const GenerateSettings& settings, const GenerateOptions& options) {
  GenerateSettings s = settings;
  const Shape grid = s.grid();
  if (!(s.interval > 0.0)) {
    throw UsageError(str("generate: interval ", s.interval, ". Give a positive time."));
  }
  const Mesh mesh = parse_mesh(options.mesh);
  const io::Collective ranks = nn::collective(mesh);
  const std::unique_ptr<solvers::Solver> solver = s.solver(field_layout(mesh, s.samples, grid, 1));

  const std::vector<io::NetcdfDimension> dimensions = dimensions_of(s, grid, *solver);
  std::vector<io::NetcdfVariableSpec> variables;
  for (const std::string& name : solver->field_names()) {
    io::NetcdfVariableSpec v = {.name = name, .dims = {}, .dtype = s.dtype()};
    for (const io::NetcdfDimension& d : dimensions) v.dims.push_back(d.name);
    variables.push_back(v);
  }
  io::Settings all;
  s.declare(all);
  OutputFile writer(mesh, options.out, dimensions, variables,
                    {{"title", str("tessera generate ", s.name)}, {"config", all.toml()}});

  const StopSignals signals;
  const auto start = Clock::now();
  const std::int64_t total = step_of(s, *solver, s.frames - 1);
  io::Progress progress(total, {.label = "generate"});
  for (std::int64_t frame = 0; frame < s.frames; ++frame) {
    const std::int64_t until = step_of(s, *solver, frame);
    bool stop = ranks.total(StopSignals::requested() ? 1 : 0) > 0;
    while (solver->steps() < until && !stop) {
      solver->advance(std::min(kStepsPerQuestion, until - solver->steps()));
      progress.update(solver->steps(), fmt::format("frame {}", frame));
      stop = ranks.total(StopSignals::requested() ? 1 : 0) > 0;
    }
    if (stop) {
      if (ranks.rank == 0) {
        std::cerr << "tessera: generate: stopped by a signal at frame " << frame << " of "
                  << s.frames << ". " << options.out << " was not written." << std::endl;
      }
      return kExitPreempted;
    }
    const Tensor fields = solver->fields();
    if (ranks.total(all_finite(fields) ? 0 : 1) > 0) {
      throw UsageError(str("generate: the values are not finite any more at time ", solver->time(),
                           " (the step is too long, or the grid too coarse for the viscosity). "
                           "Use more points, a smaller step (courant, largest step) or more "
                           "viscosity."));
    }
    for (std::size_t c = 0; c < variables.size(); ++c) {
      const Part part = part_of(fields, static_cast<std::int64_t>(c), frame);
      writer.write_box(variables[c].name, part.box, part.view);
    }
  }
  writer.commit();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();

  const auto* const heat = dynamic_cast<const solvers::Heat*>(solver.get());
  const double error = heat != nullptr ? heat_error(*heat, ranks) : 0.0;
  if (ranks.rank == 0) {
    fmt::print(
        "{}: {} frames of {} points, {} sample{}, {} steps of {:.4g} in {:.1f} s ({:.1f} "
        "million points per second)\n",
        options.out, s.frames, grid.str(), s.samples, s.samples > 1 ? "s" : "", solver->steps(),
        solver->dt(), seconds,
        1e-6 * static_cast<double>(s.samples * grid.product() * solver->steps()) / seconds);
    if (heat != nullptr) {
      fmt::print("Largest difference from the exact answer at time {:.4g}: {:.3g}\n",
                 solver->time(), error);
    }
    std::cout << std::flush;
  }
  return 0;
}

}  // namespace tessera::app
