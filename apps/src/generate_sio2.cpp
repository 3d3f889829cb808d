#include <fmt/format.h>

#include <charconv>
#include <iostream>
#include <optional>
#include <tessera/models/atomistic/silica.hpp>
#include <tessera/models/atomistic/silica_order.hpp>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/io/extxyz.hpp>
#include <tessera/nn/io/plot.hpp>
#include <tessera/nn/io/progress.hpp>

#include "atoms.hpp"
#include "mesh_option.hpp"

namespace tessera::app {

namespace {

std::array<std::int64_t, 3> parse_cells(const std::string& text) {
  std::array<std::int64_t, 3> cells{};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (std::size_t k = 0; k < 3; ++k) {
    const auto [stop, error] = std::from_chars(at, end, cells[k]);
    const bool last = k == 2;
    if (error != std::errc() || cells[k] < 1 ||
        (last ? stop != end : stop == end || *stop != ',')) {
      throw UsageError(
          str("generate sio2: cells `", text, "` are not three numbers. Write for example 2,2,2."));
    }
    at = stop + 1;
  }
  return cells;
}

io::PlotSeries series(const char* label, const atomistic::RadialDistribution& curve) {
  return {.label = label, .x = curve.r, .y = curve.g};
}

void draw_order(const std::string& path, const atomistic::SilicaOrder& order, const char* type) {
  io::draw_plot(
      {series("Si-O", order.si_o), series("O-O", order.o_o), series("Si-Si", order.si_si)},
      {.title = fmt::format("Silica, {}", type), .x_label = "r, A", .y_label = "g(r)"})
      .save(path);
}

}  // namespace

int run_generate_sio2(const SilicaOptions& o) {
  const bool crystal = o.kind == "quartz" || o.kind == "both";
  const bool glass = o.kind == "amorphous" || o.kind == "both";
  if (!crystal && !glass) {
    throw UsageError(
        str("generate sio2: there is no kind `", o.kind, "`. Give quartz, amorphous or both."));
  }
  const std::array<std::int64_t, 3> cells = parse_cells(o.cells);
  const Mesh mesh = parse_mesh(o.mesh);
  const io::Collective ranks = nn::collective(mesh);
  const auto potential = load_potential(o.potential, mesh);
  std::optional<io::ExtxyzWriter> writer;
  ranks.together([&] {
    if (ranks.rank == 0) writer.emplace(o.out);
  });
  std::int64_t frames = 0;
  std::int64_t atoms = 0;
  std::string orders;
  const auto make = [&](const nn::Structure& start, const char* type, std::int64_t count,
                        std::uint64_t seed) {
    io::Progress progress(count, {.label = type});
    const nn::Structure from = atomistic::rattled(start, o.rattle, o.strain, seed);
    std::vector<nn::Structure> taken;
    atomistic::thermal_frames(from, potential, mesh,
                              {.frames = count,
                               .temperature = o.temperature,
                               .last_temperature = o.last_temperature,
                               .settle = o.settle,
                               .interval = o.interval,
                               .dt = o.dt,
                               .seed = seed},
                              [&](const nn::Structure& s) {
                                nn::Structure frame = s;
                                frame.config_type = type;
                                frame.columns.clear();
                                taken.push_back(frame);
                                progress.update(static_cast<std::int64_t>(taken.size()));
                              });
    ranks.together([&] {
      for (const nn::Structure& s : taken) writer->write(s);
      if (taken.empty()) return;
      const atomistic::SilicaOrder order = atomistic::silica_order(taken);
      orders += fmt::format("{}: {}\n", type, order.summary());
      if (!o.picture.empty()) draw_order(o.picture, order, type);
    });
    frames += count;
    atoms = start.atoms();
  };
  const nn::Structure quartz = atomistic::quartz(cells);
  const std::int64_t of_crystal = !crystal ? 0 : glass ? (o.frames + 1) / 2 : o.frames;
  if (crystal) make(quartz, "quartz", of_crystal, o.seed);
  if (glass) {
    std::optional<io::Progress> progress;
    const nn::Structure cold =
        atomistic::quenched(quartz, potential, mesh,
                            {.density = o.density,
                             .melt = o.melt,
                             .end = std::max(o.temperature, 1.0),
                             .melt_time = o.melt_time,
                             .quench_time = o.quench_time,
                             .dt = o.dt,
                             .seed = o.seed},
                            [&](std::int64_t step, std::int64_t steps, double kelvin) {
                              if (!progress)
                                progress.emplace(steps, io::ProgressOptions{.label = "quench"});
                              progress->update(step, fmt::format("{:.0f} K", kelvin));
                            });
    progress.reset();
    make(cold, "amorphous", o.frames - of_crystal, o.seed + 1);
  }
  if (ranks.rank == 0) {
    fmt::print("{}: {} frames of {} atoms, labelled by {}\n", o.out, frames, atoms,
               potential->name());
    fmt::print("{}", orders);
    std::cout << std::flush;
  }
  return 0;
}

}  // namespace tessera::app
