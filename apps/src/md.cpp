#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <tessera/nn/checkpoint.hpp>
#include <tessera/nn/io/extxyz.hpp>
#include <tessera/nn/io/jsonl.hpp>

#include "atoms.hpp"
#include "mesh_option.hpp"
#include "stop_signals.hpp"

namespace tessera::app {

namespace {

using atomistic::Dynamics;
using atomistic::Thermo;
using Clock = std::chrono::steady_clock;

constexpr const char* kHeader =
    "#      step       time/fs   potential/eV     kinetic/eV       total/eV    T/K    p/GPa "
    "    V/A^3   conserved/eV\n";

std::string line_of(const Thermo& t) {
  return fmt::format(
      "{:11d} {:13.3f} {:14.6f} {:14.6f} {:14.6f} {:6.1f} {:8.3f} {:9.2f} {:14.6f}\n", t.step,
      t.time, t.potential, t.kinetic, t.total, t.temperature, t.pressure, t.volume, t.conserved);
}

/// Files of a run; only rank 0 has them.
class Output {
 public:
  Output(const MdOptions& options, std::int64_t step, const io::Collective& ranks)
      : folder_(options.out), ranks_(ranks) {
    ranks_.together([&] {
      if (ranks_.rank != 0) return;
      std::filesystem::create_directories(folder_);
      if (options.resume) {
        keep_lines(folder_ / "thermo.txt", step);
        keep_frames(folder_ / "trajectory.xyz", step);
      }
      const auto mode = options.resume ? std::ios::app : std::ios::trunc;
      table_.open(folder_ / "thermo.txt", mode);
      if (!table_) throw IoError(str("md: cannot write in ", options.out, ". Check the folder."));
      if (!options.resume) table_ << kHeader;
      lines_.emplace((folder_ / "thermo.jsonl").string(),
                     options.resume ? step : io::JsonLines::kNothing);
      if (options.frame_every > 0) {
        frames_.emplace((folder_ / "trajectory.xyz").string(), io::ExtxyzNames{}, options.resume);
      }
    });
    if (ranks_.rank == 0) fmt::print("{}", kHeader);
  }

  void log(const Thermo& t, bool shown) {
    ranks_.together([&] {
      if (ranks_.rank != 0) return;
      lines_->write({{"step", t.step},
                     {"time", t.time},
                     {"potential", t.potential},
                     {"kinetic", t.kinetic},
                     {"total", t.total},
                     {"temperature", t.temperature},
                     {"pressure", t.pressure},
                     {"volume", t.volume},
                     {"density", t.density},
                     {"conserved", t.conserved}});
      table_ << line_of(t);
      if (!table_.flush()) throw IoError("md: the table cannot be written. Make room for it.");
    });
    if (shown && ranks_.rank == 0) {
      fmt::print("{}", line_of(t));
      std::cout << std::flush;
    }
  }

  void frame(const Dynamics& d) {
    const nn::Structure s = d.snapshot();
    ranks_.together([&] {
      if (ranks_.rank == 0) frames_->write(s);
    });
  }

  void last(const Dynamics& d) {
    const nn::Structure s = d.snapshot();
    ranks_.together([&] {
      if (ranks_.rank == 0) io::write_extxyz((folder_ / "final.xyz").string(), {s});
    });
  }

 private:
  std::filesystem::path folder_;
  io::Collective ranks_;
  std::ofstream table_;
  std::optional<io::JsonLines> lines_;
  std::optional<io::ExtxyzWriter> frames_;
};

void check(const MdOptions& o) {
  if (o.steps < 0 || o.log_every < 1 || o.frame_every < 0 || o.save_every < 1) {
    throw UsageError(str("md: steps ", o.steps, ", log every ", o.log_every, ", frame every ",
                         o.frame_every, ", save every ", o.save_every,
                         ". Give numbers of steps, at least 1 (frames: 0 for none)."));
  }
}

nn::Cutting cutting_of(const std::string& text) {
  if (text == "bricks") return nn::Cutting::kBricks;
  if (text == "bisection") return nn::Cutting::kBisection;
  throw UsageError(str("md: there is no way `", text, "` to cut. Give bricks or bisection."));
}

}  // namespace

int run_md(const MdOptions& options) {
  check(options);
  const Mesh mesh = parse_mesh(options.mesh);
  const io::Collective ranks = nn::collective(mesh);
  const auto potential = load_potential(options.potential, mesh);
  atomistic::DynamicsOptions dynamics = options.dynamics;
  dynamics.ensemble = atomistic::ensemble_of(options.ensemble);
  dynamics.cutting = cutting_of(options.cutting);
  const std::string state = (std::filesystem::path(options.out) / "state.safetensors").string();
  Dynamics d = options.resume
                   ? Dynamics::resume(state, potential, mesh, dynamics)
                   : Dynamics(read_frame(options.start, options.frame), potential, mesh, dynamics);
  Output output(options, d.step(), ranks);
  if (!options.resume) {
    output.log(d.thermo(), true);
    if (options.frame_every > 0) output.frame(d);
  }
  const StopSignals signals;
  const auto begin = Clock::now();
  const std::int64_t first = d.step();
  const std::int64_t shown = std::max<std::int64_t>(1, options.steps / options.log_every / 20);
  const auto next = [&](std::int64_t every) {
    return every == 0 ? options.steps : (d.step() / every + 1) * every;
  };
  bool stop = false;
  while (d.step() < options.steps && !stop) {
    const std::int64_t until = std::min({options.steps, next(options.log_every),
                                         next(options.frame_every), next(options.save_every)});
    d.advance(until - d.step());
    const std::int64_t step = d.step();
    stop = ranks.total(StopSignals::requested() ? 1 : 0) > 0;
    const Thermo t = d.thermo();
    if (!std::isfinite(t.total)) {
      throw UsageError(str("md: the energy is not finite at step ", step,
                           " (the step is too long, or atoms are too close). Take shorter steps, "
                           "or relax the start first."));
    }
    if (step % options.log_every == 0 || step == options.steps) {
      output.log(t, step / options.log_every % shown == 0 || step == options.steps);
    }
    if (options.frame_every > 0 && step % options.frame_every == 0) output.frame(d);
    if (step % options.save_every == 0 || step == options.steps || stop) d.save(state);
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (stop && d.step() < options.steps) {
    if (ranks.rank == 0) {
      std::cerr << "tessera: md: stopped by a signal at step " << d.step() << " of "
                << options.steps << "; continue with --resume." << std::endl;
    }
    return kExitPreempted;
  }
  output.last(d);
  if (ranks.rank == 0) {
    const auto atoms = static_cast<double>(d.domain().graph().node_count());
    const auto steps = static_cast<double>(d.step() - first);
    fmt::print("{}: {} atoms, {} steps in {:.1f} s ({:.0f} atom-steps per second)\n", options.out,
               atoms, steps, seconds, atoms * steps / std::max(seconds, 1e-9));
    std::cout << std::flush;
  }
  return 0;
}

int run_relax(const RelaxCommand& options) {
  const Mesh mesh = parse_mesh(options.mesh);
  const io::Collective ranks = nn::collective(mesh);
  const auto potential = load_potential(options.potential, mesh);
  const nn::Structure start = read_frame(options.start, options.frame);
  if (ranks.rank == 0) fmt::print("#   step      energy/eV  force/(eV/A)  stress/(eV/A^3)\n");
  const std::int64_t shown = std::max<std::int64_t>(1, options.relax.steps / 100);
  const atomistic::Relaxed relaxed =
      atomistic::relax(start, *potential, mesh, options.relax, [&](const atomistic::RelaxStep& s) {
        if (ranks.rank != 0 || s.step % shown != 0) return;
        fmt::print("{:8d} {:14.6f} {:13.3e} {:16.3e}\n", s.step, s.energy, s.force, s.stress);
      });
  ranks.together([&] {
    if (ranks.rank == 0) io::write_extxyz(options.out, {relaxed.structure});
  });
  if (ranks.rank == 0) {
    fmt::print("{}: {} after {} steps, energy {:.6f} eV, largest force {:.2e} eV/A\n", options.out,
               relaxed.converged ? "converged" : "not converged", relaxed.last.step,
               relaxed.last.energy, relaxed.last.force);
    std::cout << std::flush;
  }
  return relaxed.converged ? 0 : 1;
}

}  // namespace tessera::app
