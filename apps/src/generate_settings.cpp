#include "generate_settings.hpp"

#include <algorithm>

namespace tessera::app {
namespace {

using solvers::FlowOptions;

bool is_flow(const std::string& name) { return name == "kolmogorov" || name == "turbulence"; }

}  // namespace

const std::vector<GenerateCase>& generate_cases() {
  static const std::vector<GenerateCase> cases = {
      {"heat", "Heat equation from a few plane waves; its exact answer is known.", 2},
      {"gray_scott", "Gray-Scott reaction and diffusion: spots and stripes that grow.", 3},
      {"kolmogorov", "Flow in 2-D driven by a sine of the forcing along x, with drag.", 2},
      {"turbulence", "Turbulence in 2-D or 3-D that decays from random waves.", 2}};
  return cases;
}

GenerateSettings::GenerateSettings(const std::string& of) : name(of) {
  const auto& cases = generate_cases();
  const auto found = std::find_if(cases.begin(), cases.end(),
                                  [&](const GenerateCase& c) { return c.name == name; });
  if (found == cases.end()) throw UsageError(str("generate: no case \"", name, "\"."));
  if (name == "heat") {
    interval = 0.1;
  } else if (name == "gray_scott") {
    interval = 50.0;
    spin_up = 500.0;
  } else if (name == "kolmogorov") {
    flow.forcing = 1.0;
    flow.drag = 0.1;
    interval = 0.5;
    spin_up = 20.0;
  } else {
    interval = 0.25;
    spin_up = 0.5;
  }
}

void GenerateSettings::declare(io::Settings& s) {
  const io::Settings::Rule positive = {.min = 1};
  const io::Settings::Rule not_negative = {.min = 0};
  s.add("grid.size", size,
        "Points along each dimension, the last one innermost; one number: along all.", positive);
  s.add("grid.dims", dims, "Dimensions of the domain; 0: as many as sizes, or the case's own.",
        {.min = 0, .max = 3});
  s.add("output.samples", samples, "Independent fields, which differ in their start.", positive);
  s.add("output.frames", frames, "Times that are written.", positive);
  s.add("output.interval", interval, "Time between two frames.", not_negative);
  s.add("output.spin_up", spin_up, "Time before the first frame.", not_negative);
  s.add("output.precision", precision, "Element type, in the computation and in the file.",
        {.choices = {"f32", "f64"}});
  s.add("physics.seed", seed, "Key of all random numbers.");
  if (name == "heat") {
    s.add("physics.diffusivity", heat.diffusivity, "Diffusivity; the domain is 1 long.",
          not_negative);
    s.add("physics.waves", heat.waves, "Plane waves at the start.", positive);
    s.add("physics.largest", heat.largest, "Largest number of periods of a wave.", positive);
    s.add("physics.courant", heat.courant,
          "Step times diffusivity over dx^2, summed over dimensions; at most 0.5.", not_negative);
  } else if (name == "gray_scott") {
    s.add("physics.diffusion_u", gray_scott.diffusion_u, "Diffusivity of u; points are 1 apart.",
          not_negative);
    s.add("physics.diffusion_v", gray_scott.diffusion_v, "Diffusivity of v.", not_negative);
    s.add("physics.feed", gray_scott.feed, "Rate at which u is fed.", not_negative);
    s.add("physics.kill", gray_scott.kill, "Rate at which v is removed, beside the feed's.",
          not_negative);
    s.add("physics.seeds", gray_scott.seeds, "Spots of v at the start; 0: by the volume.",
          not_negative);
    s.add("physics.largest_step", gray_scott.largest_step, "Largest time step.", not_negative);
  } else {
    s.add("physics.viscosity", flow.viscosity, "Kinematic viscosity; the domain is 2 pi long.",
          not_negative);
    if (name == "kolmogorov") {
      s.add("physics.forcing", flow.forcing, "Amplitude of the force along x.");
      s.add("physics.waves", flow.waves, "Periods of the force along y.", positive);
      s.add("physics.drag", flow.drag, "Linear drag.", not_negative);
    }
    s.add("physics.speed", flow.speed, "Root mean square of the speed at the start.", not_negative);
    s.add("physics.peak", flow.peak, "Wave number of the start.", positive);
    s.add("physics.fastest", flow.fastest, "Largest speed that is expected; sets the time step.",
          not_negative);
    s.add("physics.courant", flow.courant,
          "Cells that the fastest flow crosses in a step; errors of compressibility grow with its "
          "square.",
          not_negative);
  }
}

Shape GenerateSettings::grid() const {
  if (size.empty()) {
    throw UsageError(
        str("generate: no size. Give the points along each dimension, e.g. --size 64 "
            "or --size 64,48."));
  }
  std::int64_t count = dims;
  if (count == 0 && size.size() > 1) count = static_cast<std::int64_t>(size.size());
  for (const GenerateCase& c : generate_cases()) {
    if (count == 0 && c.name == name) count = c.dims;
  }
  if (size.size() > 1 && static_cast<std::int64_t>(size.size()) != count) {
    throw UsageError(str("generate: ", size.size(), " sizes for ", count,
                         " dimensions. Give one size, or one for each dimension."));
  }
  const bool allowed =
      name == "kolmogorov" ? count == 2 : count <= 3 && (count > 1 || !is_flow(name));
  if (!allowed) {
    throw UsageError(str("generate: ", name, " has no ", count, "-D form. Use ",
                         name == "kolmogorov"   ? "2"
                         : name == "turbulence" ? "2 or 3"
                                                : "1 to 3",
                         " dimensions."));
  }
  Shape shape;
  for (std::int64_t d = 0; d < count; ++d) {
    shape.push_back(size[size.size() > 1 ? static_cast<std::size_t>(d) : 0]);
  }
  return shape;
}

DType GenerateSettings::dtype() const {
  return precision == "f64" ? DType::kFloat64 : DType::kFloat32;
}

std::unique_ptr<solvers::Solver> GenerateSettings::solver(const Layout& layout) const {
  const auto with = [&](auto options) {
    options.interval = interval;
    options.seed = seed;
    return options;
  };
  if (name == "heat") return std::make_unique<solvers::Heat>(with(heat), layout, dtype());
  if (name == "gray_scott") {
    return std::make_unique<solvers::GrayScott>(with(gray_scott), layout, dtype());
  }
  return std::make_unique<solvers::Flow>(with(flow), layout, dtype());
}

}  // namespace tessera::app
